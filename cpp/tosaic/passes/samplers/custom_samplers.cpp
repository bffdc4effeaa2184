#include <cmath>

#include "tosaic/ir/custom_sampler.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/samplers/samplers.h"

namespace tosaic::passes {
namespace {

bool has_snorm_scale(const TensorType& type) {
  const QParamsRef& q = type.qparams;
  return q && q->storage == DType::kI8 && !q->axis && q->zero_points.front() == 0 &&
         std::abs(q->scales.front() * 127 - 1) < 1e-6;
}

// The format writes -127..127 only. It also reads -128, so an image may have that range.
bool is_snorm(const TensorType& image, const TensorType& result) {
  return has_snorm_scale(image) && has_snorm_scale(result) && result.qparams->qmin == -127 &&
         result.qparams->qmax == 127;
}

bool is_byte_grid(const TensorType& type) {
  return type.qparams && type.qparams->storage == DType::kI8 && !type.qparams->axis;
}

// The key of the sampler's shader in SamplerShaders; empty if no shader computes this sampler.
std::string form_of(const Graph& graph, const Node& node) {
  const auto& attrs = Graph::attrs<GridSampleAttrs>(node);
  const TensorType& image = graph.type(graph.operands(node)[0]);
  const TensorType& grid = graph.type(graph.operands(node)[1]);
  if (attrs.mode == ResizeMode::kBicubic || image.rank() != 4 || image.shape[0] != 1 || image.shape[1] != 4)
    return {};
  const std::string corners = attrs.align_corners ? "_align_corners" : "";
  if (image.dtype == DType::kF32 && !image.qparams && !grid.qparams) return "image" + corners;
  if (is_snorm(image, graph.type(graph.result(node))) && is_byte_grid(grid)) return "image_int8" + corners;
  return {};
}

// One level of a JSON object.
class Json {
 public:
  Json& text(const std::string& key, std::string_view value) {
    return raw(key, "\"" + std::string(value) + "\"");
  }
  Json& raw(const std::string& key, const std::string& value) {
    object_ += (object_.empty() ? "\"" : ",\"") + key + "\":" + value;
    return *this;
  }
  [[nodiscard]] std::string str() const { return "{" + object_ + "}"; }

 private:
  std::string object_;
};

// Writes how the shader accesses an operand or the result.
void bind_port(Json& json, const std::string& port, int binding, std::string_view type,
               std::string_view format, std::string_view descriptor) {
  json.raw(port + "_binding", std::to_string(binding))
      .raw(port + "_descriptorset", "0")
      .text(port + "_type", type)
      .text(port + "_vkformat", format)
      .text(port + "_vkdescriptortype", descriptor);
}

std::string sampler_of(const GridSampleAttrs& attrs) {
  const std::string_view filter =
      attrs.mode == ResizeMode::kNearest ? "VK_FILTER_NEAREST" : "VK_FILTER_LINEAR";
  const std::string_view address =
      attrs.padding == GridPadding::kZeros    ? "VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER"
      : attrs.padding == GridPadding::kBorder ? "VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE"
                                              : "VK_SAMPLER_ADDRESS_MODE_MIRRORED_REPEAT";
  Json json;
  json.text("min_filter", filter).text("mag_filter", filter);
  json.text("address_mode_u", address).text("address_mode_v", address);
  json.text("border_color", "VK_BORDER_COLOR_FLOAT_TRANSPARENT_BLACK");
  return json.str();
}

// The JSON of implementation_attrs. `grid` is the shape (1, H', W', 2): a work group has 8 x 8 outputs.
std::string payload(const GridSampleAttrs& attrs, bool integers, const Shape& grid,
                    const std::string& shader) {
  const auto groups = [](std::int64_t extent) { return std::to_string((extent + 7) / 8); };
  const std::string_view format = integers ? "VK_FORMAT_R8G8B8A8_SNORM" : "VK_FORMAT_R32G32B32A32_SFLOAT";
  Json json;
  json.text("entry_point", "main");
  json.raw("workgroup_sizes",
           "[" + groups(grid[2]) + "," + groups(grid[1]) + "," + std::to_string(grid[0]) + "]");
  json.text("shader_language", "SPIR-V").text("shader_code", shader);
  bind_port(json, "input_0", 0, "Image", format, "VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER");
  json.raw("input_0_sampler", sampler_of(attrs));
  bind_port(json, "input_1", 1, "Tensor", integers ? "VK_FORMAT_R8_SINT" : "VK_FORMAT_R32_SFLOAT",
            "VK_DESCRIPTOR_TYPE_TENSOR_ARM");
  bind_port(json, "output_0", 2, "Image", format, "VK_DESCRIPTOR_TYPE_STORAGE_IMAGE");
  if (integers) {
    bind_port(json, "input_2", 3, "Tensor", "VK_FORMAT_R32_SFLOAT", "VK_DESCRIPTOR_TYPE_STORAGE_BUFFER");
    bind_port(json, "input_3", 4, "Tensor", "VK_FORMAT_R32_SINT", "VK_DESCRIPTOR_TYPE_STORAGE_BUFFER");
  }
  return json.str();
}

// Adds a permute whose result has the qparams of its operand. The function takes no type from infer(), which
// knows no qparams.
ValueId permuted(Rewriter& rewriter, const Node& node, ValueId x, const Dims& perm) {
  Graph& out = rewriter.begin_output(node);
  TensorType type = out.type(x);
  const Shape from = type.shape;
  for (std::size_t i = 0; i < perm.size(); ++i) type.shape[i] = from[static_cast<std::size_t>(perm[i])];
  const ValueId operands[] = {x};
  const NodeId made = out.add_node(Op::kPermute, share(PermuteAttrs{perm}), operands, std::span(&type, 1),
                                   node.origin, rewriter.source().node_name(node) + ".permute");
  return out.result(out.node(made));
}

void replace(Rewriter& rewriter, const Node& node, const std::string& shader) {
  const Graph& source = rewriter.source();
  const auto& attrs = Graph::attrs<GridSampleAttrs>(node);
  const TensorType result = source.type(source.result(node));
  const TensorType grid = source.type(source.operands(node)[1]);
  const QParamsRef image = source.type(source.operands(node)[0]).qparams;
  Graph& out = rewriter.begin_output(node);
  const std::vector<ValueId> mapped = rewriter.map_operands(node);
  std::vector<ValueId> operands{permuted(rewriter, node, mapped[0], {0, 2, 3, 1}), mapped[1]};
  if (image) {
    const double scale[] = {grid.qparams->scales.front()};
    const double zero_point[] = {static_cast<double>(grid.qparams->zero_points.front())};
    operands.push_back(rewriter.constant(node, make_constant("grid_scale", DType::kF32, {1}, scale)));
    operands.push_back(
        rewriter.constant(node, make_constant("grid_zero_point", DType::kI32, {1}, zero_point)));
  }
  OpaqueAttrs custom{.target = "aten.grid_sampler_2d.default",
                     .arguments = payload(attrs, image != nullptr, grid.shape, shader)};
  custom.domain = kCustomShaderDomain;
  custom.name = custom_sampler_name(attrs);
  custom.integers = image != nullptr;
  TensorType type = result;
  type.shape = {result.shape[0], result.shape[2], result.shape[3], result.shape[1]};
  const NodeId made = out.add_node(Op::kOpaque, share(std::move(custom)), operands, std::span(&type, 1),
                                   node.origin, source.node_name(node) + ".sampler");
  rewriter.replace(node, permuted(rewriter, node, out.result(out.node(made)), {0, 3, 1, 2}));
}

}  // namespace

std::optional<Graph> custom_samplers(const Graph& graph, const SamplerShaders& shaders) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const auto shader = node.op == Op::kGridSample ? shaders.find(form_of(graph, node)) : shaders.end();
    if (shader == shaders.end())
      rewriter.copy(node);
    else
      replace(rewriter, node, shader->second);
  }
  return std::move(rewriter).finish();
}

}  // namespace tosaic::passes
