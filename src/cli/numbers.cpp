#include "cli/numbers.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace treadle::cli {
namespace {

// @param refusal  text such as "takes a number above 0, not". The command line puts the option's name before it.
// @param type     shown by the help
template <typename Holds>
CLI::Validator number(std::string refusal, std::string type, Holds holds) {
  return CLI::Validator(
      [refusal = std::move(refusal), holds](const std::string& given) {
        double value = 0;
        // The option's own conversion refuses what is no number at all.
        if (!CLI::detail::lexical_cast(given, value) || holds(value)) return std::string();
        return fmt::format("{} \"{}\"", refusal, given);
      },
      std::move(type));
}

}  // namespace

CLI::Validator at_least(double least) {
  return number(least == 0 ? "takes no number below 0:" : fmt::format("takes a number from {:g}, not", least),
                least == 0 ? "NONNEGATIVE" : fmt::format("FROM {:g}", least), [least](double value) { return value >= least; });
}
CLI::Validator above(double bound) {
  return number(fmt::format("takes a number above {:g}, not", bound), bound == 0 ? "POSITIVE" : fmt::format("ABOVE {:g}", bound),
                [bound](double value) { return value > bound; });
}
CLI::Validator between(double least, double most) {
  return number(fmt::format("takes a number from {:g} to {:g}, not", least, most), fmt::format("{:g} TO {:g}", least, most),
                [least, most](double value) { return value >= least && value <= most; });
}

}  // namespace treadle::cli
