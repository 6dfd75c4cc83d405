// Computes quantiles and other figures from the nodes' histograms.
#include <nlohmann/json.hpp>

#include "profile/model/rounding.h"
#include "treadle/profile.h"

namespace treadle {

double NodeCounter::quantile_ns(double part) const {
  double left = part * static_cast<double>(calls);
  for (const Bucket& bucket : histogram) {
    const auto count = static_cast<double>(bucket.count);
    if (left <= count) return bucket.low_ns + (bucket.high_ns - bucket.low_ns) * left / count;
    left -= count;
  }
  return histogram.empty() ? 0 : histogram.back().high_ns;
}

std::string node_counters_to_json(const std::vector<NodeCounter>& counters) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const NodeCounter& counter : counters) {
    Json json{{"name", counter.name}, {"op", counter.op_type}};
    if (counter.parent >= 0) json["parent"] = counter.parent;
    json["calls"] = counter.calls;
    json["total_ms"] = profile::milliseconds(counter.total_ns);
    json["mean_us"] = profile::rounded(counter.mean_ns() / 1e3, 1000);
    for (const auto& [name, part] : {std::pair("p50_us", 0.5), std::pair("p90_us", 0.9), std::pair("p99_us", 0.99)})
      json[name] = profile::rounded(counter.quantile_ns(part) / 1e3, 1000);
    Json& histogram = json["histogram"] = Json::array();
    for (const NodeCounter::Bucket& bucket : counter.histogram) histogram.push_back({bucket.low_ns, bucket.high_ns, bucket.count});
    list.push_back(std::move(json));
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace treadle
