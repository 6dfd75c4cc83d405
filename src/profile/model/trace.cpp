#include "profile/model/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace treadle {

bool ProfileTrace::is_on(uint64_t ticks) const { return profile::is_within(intervals, ticks); }

namespace profile {

bool is_within(const std::vector<std::pair<uint64_t, uint64_t>>& intervals, uint64_t ticks) {
  auto after =
      std::upper_bound(intervals.begin(), intervals.end(), ticks, [](uint64_t t, const auto& interval) { return t < interval.first; });
  return after != intervals.begin() && ticks < (after - 1)->second;
}

std::string valid_utf8(const std::string& text) {
  const nlohmann::json json = text;
  return nlohmann::json::parse(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).get<std::string>();
}

}  // namespace profile
}  // namespace treadle
