// Writes a profile's nodes as comma-separated values (RFC 4180).
#include <fmt/format.h>

#include <string>

#include "profile/model/report_json.h"
#include "profile/writers/text_table.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace profile {
namespace {

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(const std::optional<double>& number) { return number ? json_text(*number) : ""; }

std::string forward_names(const NodeReport& node, const std::vector<NodeReport>& nodes) {
  std::string text;
  for (int32_t index : node.forward) text += (text.empty() ? "" : " ") + nodes[static_cast<size_t>(index)].name;
  return text;
}

}  // namespace
}  // namespace profile

std::string profile_to_csv(const ProfileReport& report) {
  using namespace profile;
  std::string text =
      "node,operator,kernel,shapes,sources,calls,median_ms,p10_ms,p90_ms,mean_ms,share,flops,bytes,gflops,gb_per_s,of_peak,bound,"
      "phase,sequence,forward,layer,ready_ms,waited_ms\r\n";
  for (const NodeReport& node : report.nodes) {
    const auto ms = [&](double ProfileTimes::*of) { return node.ms ? json_text((*node.ms).*of) : ""; };
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\r\n", csv_cell(node.name),
                        csv_cell(node.op_type), csv_cell(node.kernel), csv_cell(shapes_of(node)),
                        csv_cell(fmt::format("{}", fmt::join(node.sources, " "))), csv_number(node.calls), ms(&ProfileTimes::median),
                        ms(&ProfileTimes::p10), ms(&ProfileTimes::p90), csv_number(node.mean_ms), csv_number(node.share),
                        csv_number(node.flops), csv_number(node.bytes), csv_number(node.gflops), csv_number(node.gb_per_s),
                        csv_number(node.of_peak), csv_cell(node.bound), csv_cell(node.phase),
                        node.sequence >= 0 ? std::to_string(node.sequence) : "", csv_cell(forward_names(node, report.nodes)),
                        csv_cell(node.layers.empty() ? "" : node.layers.back()), csv_number(node.ready_ms), csv_number(node.waited_ms));
  }
  return text;
}

}  // namespace treadle
