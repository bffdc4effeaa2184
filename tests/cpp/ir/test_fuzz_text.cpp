// Mutates texts. For any text, parse() must return a graph or throw a user error (not InternalError). A graph
// that it returns must survive printing and parsing. The environment variable TOSAIC_FUZZ_ITERATIONS sets the
// number of mutations, and TOSAIC_FUZZ_SEED sets the seed.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "example_graphs.h"
#include "tosaic/ir/diff.h"
#include "tosaic/ir/dot.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/print.h"

namespace tosaic {
namespace {

constexpr const char* kCanonical = R"(tosaic 1
graph @ops stage=exported {
  input %x: f32[1,4,8,8] path="x"
  input %m: f32[2,3,4] path="m"
  input %i: i64[2] path="i"
  input %b: bool[2,3,4] path="b"
  const %w: f32[6,4,3,3] = parameter ref(864)
  const %dw: f32[4,2,3,3] = parameter ref(288)
  const %c: f32[4] = lifted [1.0,2.0,3.0,4.0]
  %conv: f32[1,6,4,4] = conv(%x, %w, none) {stride=[2,2], pad_before=[1,1], pad_after=[1,1], dilation=[1,1], output_padding=[0,0], groups=1, transposed=false}
  %tconv: f32[1,2,17,17] = conv(%x, %dw, none) {stride=[2,2], pad_before=[0,0], pad_after=[0,0], dilation=[1,1], output_padding=[0,0], groups=1, transposed=true}
  %max: f32[1,4,4,4] = max_pool(%x) {kernel=[2,2], stride=[2,2], padding=[0,0], dilation=[1,1]}
  %avg: f32[1,4,8,8] = avg_pool(%x) {kernel=[3,3], stride=[1,1], padding=[1,1], dilation=[1,1], ceil_mode=true, divisor_override=5}
  %ada: f32[1,4,3,3] = adaptive_avg_pool(%x) {shape=[3,3]}
  %res: f32[1,4,16,16] = resize(%x) {mode=bilinear, size=[16,16], align_corners=true, scales=[2.0,2.0]}
  %mm: f32[2,3,3] = matmul(%m, %mt)
  return %mm path="out"
}
)";

// Lines of a graph at stage exported, for the rules of type inference that kCanonical does not use.
constexpr std::array kLines{
    "%r: f32[8,8,4] = reshape(%x) {shape=[8,8,4]}",
    "%r: f32[8,8,4,1] = permute(%x) {perm=[2,3,1,0]}",
    "%r: f32[3,4,8,8] = expand(%x) {shape=[3,4,8,8]}",
    "%r: f32[2,8,8,8] = repeat(%x) {shape=[2,2,1,1]}",
    "%r: f32[4,3,4] = cat(%m, %m) {axis=0}",
    "%r: f32[2,2,3,4] = stack(%m, %m) {axis=1}",
    "%r: f32[2,1,4], %r.1: f32[2,2,4] = split(%m) {axis=1, sizes=[1,2]}",
    "%r: f32[3,4], %r.1: f32[3,4] = unbind(%m) {axis=0}",
    "%r: f32[2,4] = select(%m) {axis=1, index=2}",
    "%r: f32[2,2,4] = slice(%m) {axis=1, start=0, end=3, step=2}",
    "%r: f32[2,3,4] = flip(%m) {axes=[0,2]}",
    "%r: f32[3,3,2] = pad(%m) {before=[1,0,-1], after=[0,0,-1], mode=constant, value=0.5}",
    "%r: f32[2,3,4] = tril(%m) {diagonal=-1}",
    "%r: f32[2,2,4] = index_select(%m, %i) {axis=1}",
    "%r: f32[2,2,4] = index(%m, none, %i)",
    "%r: f32[2,4] = index(%m, %i, %i)",
    "%r: f32[2,4] = embedding(%e, %i)",
    "%r: f32[2,4] = sum(%m) {axes=[1], keepdim=false, dtype=none}",
    "%r: f32[2,1,1] = mean(%m) {axes=[1,2], keepdim=true}",
    "%r: f32[2,3] = var(%m) {axes=[2], correction=1.0}",
    "%r: i64[2,3] = argmax(%m) {axis=2}",
    "%r: f32[2,3,4] = cumsum(%m) {axis=1}",
    "%r: f32[2,2,4] = diff(%m) {n=1, axis=1}",
    "%r: f32[2,3,4] = softmax(%m) {axis=2, dtype=f32}",
    "%r: f32[2,3,4] = layer_norm(%m, none, none) {normalized_rank=2, eps=1e-05}",
    "%r: f32[1,4,8,8] = group_norm(%x, %c, %c) {groups=2}",
    "%r: f32[1,4,8,8] = batch_norm(%x, none, none, %c, %c)",
    "%r: f32[2,3,4] = sdpa(%m, %m, %m, none) {is_causal=true}",
    "%r: f32[2,3,4] = where(%b, %m, %c)",
    "%r: f32[2,3,4] = div(%m, %c) {rounding=floor}",
    "%r: bool[2,3,4] = le(%m, %c)",
    "%r: i64[5] = arange() {start=0, end=10, step=2, dtype=i64}",
    "%r: f32[2,2] = full() {shape=[2,2], value=1.0, dtype=f32}",
    "%r: f16[2,3,4] = cast(%m) {dtype=f16}",
    "%r: f32[2,3,4] = clone(%m) {order=[0,2,1]}",
};

// Lines of a graph at stage tosa.
constexpr std::array kTosaLines{
    "%r: f32[1,8,8,6] = tosa.conv2d(%x, %w, %c) {pad=[1,1,1,1], stride=[1,1], dilation=[1,1], acc_type=f32}",
    "%r: f32[1,8,8,8] = tosa.depthwise_conv2d(%x, %dw, %c8) {pad=[1,1,1,1], stride=[1,1], dilation=[1,1]}",
    "%r: f32[1,17,17,6] = tosa.transpose_conv2d(%x, %w, %c) {out_pad=[0,0,0,0], stride=[2,2]}",
    "%r: f32[1,4,4,4] = tosa.max_pool2d(%x) {kernel=[2,2], stride=[2,2], pad=[0,0,0,0]}",
    "%r: f32[1,4,4,4] = tosa.avg_pool2d(%x) {kernel=[2,2], stride=[2,2], pad=[0,0,0,0]}",
    "%r: f32[2,3,3] = tosa.matmul(%m, %n)",
    "%r: i32[2,4] = tosa.argmax(%m) {axis=1}",
    "%r: f32[2,1,4] = tosa.reduce_sum(%m) {axis=1}",
    "%r: f32[4,3,4] = tosa.concat(%m, %m) {axis=0}",
    "%r: f32[3,3,6] = tosa.pad(%m) {before=[1,0,1], after=[0,0,1], value=0.0}",
    "%r: f32[24] = tosa.reshape(%m) {shape=[24]}",
    "%r: f32[2,3,4] = tosa.reverse(%m) {axis=2}",
    "%r: f32[1,2,4] = tosa.slice(%m) {start=[1,0,0], size=[1,2,4]}",
    "%r: f32[4,3,8] = tosa.tile(%m) {shape=[2,1,2]}",
    "%r: f32[4,2,3] = tosa.transpose(%m) {perm=[2,0,1]}",
    "%r: f32[1,15,15,4] = tosa.resize(%x) {mode=bilinear, scale=[2,1,2,1], offset=[0,0], border=[0,0]}",
    "%r: f32[2,3,4] = tosa.clamp(%m) {min_val=0.0, max_val=6.0, nan_mode=ignore}",
    "%r: f32[2,3,4] = tosa.mul(%m, %m) {shift=0}",
    "%r: f32[2,3,4] = tosa.negate(%m)",
};

std::string with_lines(std::string head, std::span<const char* const> lines) {
  std::string body;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = lines[i];
    const std::string fresh = "%r" + std::to_string(i);
    for (std::size_t at = line.find("%r"); at != std::string::npos; at = line.find("%r", at + 2))
      line.replace(at, 2, fresh);
    const std::string with = head + "  " + line + "\n}\n";
    if (testing::error_of([&] { static_cast<void>(parse(with)); }).empty())
      body += "  " + line + "\n";
    else
      UNSCOPED_INFO(line << "  " << testing::error_of([&] { static_cast<void>(parse(with)); }));
  }
  CHECK(std::count(body.begin(), body.end(), '\n') == static_cast<std::ptrdiff_t>(lines.size()));
  return head + body + "}\n";
}

std::vector<std::string> seeds() {
  std::string head(kCanonical);
  head.insert(head.find("  %mm"), "  %mt: f32[2,4,3] = permute(%m) {perm=[0,2,1]}\n");
  static_cast<void>(parse(head));
  head = head.substr(0, head.find("  return"));
  head += "  const %e: f32[10,4] = parameter ref(160)\n";
  const std::string tosa =
      "tosaic 1\ngraph @t stage=tosa {\n  input %x: f32[1,8,8,4] path=\"x\"\n  input %m: f32[2,3,4]\n"
      "  input %n: f32[2,4,3]\n  const %w: f32[6,3,3,4] = parameter ref(864)\n"
      "  const %dw: f32[3,3,4,2] = parameter ref(288)\n  const %c: f32[6] = parameter "
      "[1.0,2.0,3.0,4.0,5.0,6.0]\n"
      "  const %c8: f32[8] = parameter ref(32)\n";
  return {print(testing::full_graph()), print(testing::conv_network(2)), with_lines(head, kLines),
          with_lines(tosa, kTosaLines)};
}

class Mutator {
 public:
  Mutator(std::uint64_t seed, const std::vector<std::string>& seeds) : random_(seed), seeds_(seeds) {}

  std::string next() {
    std::string text = seeds_[below(seeds_.size())];
    const std::size_t edits = 1 + below(4);
    for (std::size_t i = 0; i < edits && !text.empty(); ++i) edit(text);
    return text;
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  void edit(std::string& text) {
    const std::size_t at = below(text.size());
    const std::size_t length = std::min(1 + below(40), text.size() - at);
    switch (below(8)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), length));
        break;
      case 3:
        text.replace(at, length, text.substr(below(text.size()), length));
        break;
      case 4:
        text.resize(at);
        break;
      default:
        number_or_word(text, at);
    }
  }

  // Replaces the first number at or after `at` by an extreme number or, one time in four, by a word of the
  // text.
  void number_or_word(std::string& text, std::size_t at) {
    static constexpr std::array kNumbers{"0",
                                         "-1",
                                         "1",
                                         "2",
                                         "7",
                                         "8",
                                         "63",
                                         "64",
                                         "255",
                                         "65536",
                                         "2147483647",
                                         "-2147483648",
                                         "4294967296",
                                         "281474976710656",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "18446744073709551616",
                                         "1e308",
                                         "1e999",
                                         "-inf",
                                         "nan",
                                         "0.0",
                                         "1e-320",
                                         "0x7fc00001",
                                         "none",
                                         "true"};
    const std::size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    if (below(4) != 0) {
      text.replace(begin, end - begin, kNumbers[below(kNumbers.size())]);
      return;
    }
    const std::size_t from = text.find_first_of("%abcdefghijklmnopqrstuvwxyz", below(text.size()));
    if (from == std::string::npos) return;
    const std::size_t to = std::min(text.find_first_of(" ,(){}=:", from), text.size());
    text.replace(begin, end - begin, text.substr(from, to - from));
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& seeds_;
};

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST_CASE("a mutated text is parsed or causes a user error", "[ir][text][fuzz]") {
  const std::vector<std::string> texts = seeds();
  const Graph original = parse(texts[0]);
  const std::uint64_t seed = setting("TOSAIC_FUZZ_SEED", 1);
  const std::uint64_t iterations = setting("TOSAIC_FUZZ_ITERATIONS", 3000);
  Mutator mutator(seed, texts);
  std::uint64_t accepted = 0;
  for (std::uint64_t i = 0; i < iterations; ++i) {
    const std::string text = mutator.next();
    try {
      const Graph graph = parse(text);
      ++accepted;
      const std::string printed = print(graph);
      if (print(parse(printed)) != printed)
        FAIL("no round trip, seed " << seed << ", mutation " << i << ":\n" << text);
      if (!diff(graph, graph).empty())
        FAIL("differs from itself, seed " << seed << ", mutation " << i << ":\n" << text);
      static_cast<void>(to_string(diff(original, graph)));
      static_cast<void>(dot(graph));
    } catch (const InternalError& error) {
      FAIL(error.what() << ", seed " << seed << ", mutation " << i << ":\n" << text);
    } catch (const Error&) {
      continue;
    }
  }
  CHECK(accepted > iterations / 100);
}

}  // namespace
}  // namespace tosaic
