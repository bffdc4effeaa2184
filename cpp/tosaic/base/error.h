// error: the exception types, one per kind of fault: five that a user can cause and one for bugs of tosaic.
//
// Text form: `[where] what is wrong: expected X, got Y (node 'conv2d_3', module 'layer1.conv', model.py:41).
// Hint.` The parts are stored as data; `what()` returns the formatted text.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace tosaic {

// The parts of a message. Empty parts are left out of the text.
struct ErrorParts {
  std::string where = {};     // the layer or pass that found the fault, e.g. "verify", "tosa/check"
  std::string what = {};      // what is wrong, no trailing punctuation
  std::string expected = {};  // optional
  std::string got = {};       // optional
  std::string node = {};      // node or value name
  std::string module_path = {};
  std::string source = {};  // file:line
  std::string hint = {};    // a full sentence without its final full stop
};

[[nodiscard]] std::string format_error(const ErrorParts& parts);

class Error : public std::runtime_error {
 public:
  explicit Error(const ErrorParts& parts) : Error(parts, {parts}) {}
  // One or more faults that were found together. The text of a single fault is its own text. The text of
  // several is their number and `headline`, then one line per fault:
  //   [where] 2 problems keep this graph from TOSA
  //     [verify] ...
  //     [verify] ...
  Error(const std::string& where, const std::string& headline, const std::vector<ErrorParts>& each)
      : Error(summarize(where, headline, each), each) {}

  [[nodiscard]] const ErrorParts& parts() const { return parts_; }
  // All faults: exactly one if the error was built from one ErrorParts.
  [[nodiscard]] const std::vector<ErrorParts>& each() const { return each_; }

 private:
  Error(const ErrorParts& parts, std::vector<ErrorParts> each)
      : std::runtime_error(format_error(parts)), parts_(parts), each_(std::move(each)) {}
  [[nodiscard]] static ErrorParts summarize(const std::string& where, const std::string& headline,
                                            const std::vector<ErrorParts>& each);

  ErrorParts parts_;
  std::vector<ErrorParts> each_;
};

// A graph, text, file or argument that is malformed or inconsistent (ValueError in Python).
class InvalidGraph : public Error {
  using Error::Error;
};
// Well-formed, but outside what tosaic or the target can express (NotImplementedError in Python).
class UnsupportedOp : public Error {
  using Error::Error;
};
// A graph that breaks a rule of the target's specification or level (ValueError).
class SpecViolation : public Error {
  using Error::Error;
};
// Quantization parameters that contradict each other (ValueError).
class QuantMismatch : public Error {
  using Error::Error;
};
// An array at a graph input or output whose shape, dtype or dim order is not the declared one (ValueError).
class LayoutMismatch : public Error {
  using Error::Error;
};
// A bug in tosaic; please report it (RuntimeError).
class InternalError : public Error {
  using Error::Error;
};

}  // namespace tosaic
