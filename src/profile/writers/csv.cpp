// A profile's nodes as comma-separated values (RFC 4180), for spreadsheets and data frames.
#include <fmt/format.h>

#include <string>

#include "profile/model/document.h"
#include "treadle/profile.h"

namespace treadle {
namespace profile {
namespace {

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(const Document& json, const char* field) { return json.contains(field) ? json.at(field).dump() : ""; }

std::string joined_sources(const Document& node) {
  std::string text;
  for (const Document& source : node.value("sources", Document::array())) text += (text.empty() ? "" : " ") + source.get<std::string>();
  return text;
}

std::string forward_names(const Document& node, const Document& nodes) {
  std::string text;
  for (const Document& index : node.value("forward", Document::array()))
    text += (text.empty() ? "" : " ") + nodes.at(index.get<size_t>()).value("name", "");
  return text;
}

}  // namespace
}  // namespace profile

std::string profile_to_csv(std::string_view json) {
  using namespace profile;
  return reading([&] {
    const Document document = parse_document(json);
    std::string text =
        "node,operator,kernel,shapes,sources,calls,median_ms,p10_ms,p90_ms,mean_ms,share,flops,bytes,gflops,gb_per_s,of_peak,bound,"
        "phase,sequence,forward,layer,ready_ms,waited_ms\r\n";
    for (const Document& node : document.at("nodes")) {
      const Document ms = node.value("ms", Document::object());
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\r\n", csv_cell(node.value("name", "")),
                          csv_cell(node.value("op", "")), csv_cell(node.value("kernel", "")), csv_cell(shapes_of(node)),
                          csv_cell(joined_sources(node)), csv_number(node, "calls"), csv_number(ms, "median"), csv_number(ms, "p10"),
                          csv_number(ms, "p90"), csv_number(node, "mean_ms"), csv_number(node, "share"), csv_number(node, "flops"),
                          csv_number(node, "bytes"), csv_number(node, "gflops"), csv_number(node, "gb_per_s"), csv_number(node, "of_peak"),
                          csv_cell(node.value("bound", "")), csv_cell(node.value("phase", "")), csv_number(node, "sequence"),
                          csv_cell(forward_names(node, document.at("nodes"))),
                          csv_cell(node.contains("layers") ? node.at("layers").back().get<std::string>() : ""),
                          csv_number(node, "ready_ms"), csv_number(node, "waited_ms"));
    }
    return text;
  });
}

}  // namespace treadle
