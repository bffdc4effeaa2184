#include "tosaic/ir/custom_sampler.h"

namespace tosaic {
namespace {

constexpr ResizeMode kModes[] = {ResizeMode::kBilinear, ResizeMode::kNearest, ResizeMode::kBicubic};
constexpr GridPadding kPaddings[] = {GridPadding::kZeros, GridPadding::kBorder, GridPadding::kReflection};

}  // namespace

std::string custom_sampler_name(const GridSampleAttrs& attrs) {
  return std::string("torch.nn.functional.grid_sample.mode.") +
         kEnumNames<ResizeMode>[static_cast<std::size_t>(attrs.mode)] + ".padding." +
         kEnumNames<GridPadding>[static_cast<std::size_t>(attrs.padding)] + ".align_corners." +
         (attrs.align_corners ? "True" : "False");
}

std::optional<GridSampleAttrs> parse_custom_sampler(std::string_view domain, std::string_view name) {
  if (domain != kCustomShaderDomain) return std::nullopt;
  for (const ResizeMode mode : kModes)
    for (const GridPadding padding : kPaddings)
      for (const bool corners : {false, true})
        if (const GridSampleAttrs attrs{mode, padding, corners}; custom_sampler_name(attrs) == name)
          return attrs;
  return std::nullopt;
}

}  // namespace tosaic
