// A profile as one page: the document, and a script that shows it.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "profile/model/document.h"
#include "profile_page.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle {
namespace profile {
namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string base64(const std::string& bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  auto byte = [&](size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U; };
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const unsigned three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (int shift = 18; shift >= 0; shift -= 6) text += kBase64[three >> shift & 63];
  }
  const size_t missing = (3 - bytes.size() % 3) % 3;
  text.replace(text.size() - missing, missing, missing, '=');
  return text;
}

// Small numbers of either sign in few bytes.
void append_number(std::string& bytes, int64_t value) {
  auto rest = static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
  for (; rest > 127; rest >>= 7) bytes += static_cast<char>(rest | 128);
  bytes += static_cast<char>(rest);
}

// A browser reads a million events of five fields as text in seconds, and as this in a tenth of one: node, thread and start beside the
// event before, duration and phase as they are, all times in nanoseconds. unpack() in timeline.js is the other half.
Document pack_timeline(const Document& timeline) {
  const bool is_overview = timeline.contains("range");
  const Document &nodes = timeline.at(is_overview ? "range" : "node"), &threads = timeline.at("thread"), &starts = timeline.at("start_us"),
                 &durations = timeline.at("duration_us");
  const Document* phases = timeline.contains("phase") ? &timeline.at("phase") : nullptr;
  const Document* waits = timeline.contains("waited_us") ? &timeline.at("waited_us") : nullptr;
  auto ns = [](const Document& us) { return static_cast<int64_t>(std::llround(std::clamp(us.get<double>(), -1e15, 1e15) * 1e3)); };
  std::string bytes;
  int64_t node = 0, thread = 0, start = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    append_number(bytes, nodes[i].get<int32_t>() - std::exchange(node, nodes[i].get<int32_t>()));
    append_number(bytes, threads.at(i).get<int32_t>() - std::exchange(thread, threads.at(i).get<int32_t>()));
    append_number(bytes, ns(starts.at(i)) - std::exchange(start, ns(starts.at(i))));
    append_number(bytes, ns(durations.at(i)));
    if (phases) append_number(bytes, phases->at(i).get<int32_t>());
    if (waits) append_number(bytes, ns(waits->at(i)));
  }
  const Document count = nodes.size();
  return {{"count", count},
          {"events", timeline.value("events", count)},
          {"has_phases", phases != nullptr},
          {"has_waits", waits != nullptr},
          {"packed", base64(bytes)}};
}

// Also what `treadle explain --json` prints: nodes, passes and memory of a plan that did not run.
Document parse_profile_or_plan(std::string_view text) {
  Document document = parse_json(text, /*throws=*/false);
  if (!document.is_object() || document.value("format", Document()) != "treadle-explain") return checked_profile(std::move(document));
  for (const char* part : {"nodes", "passes"})
    if (!document.contains(part) || !document[part].is_array())
      throw Error(ErrorCode::invalid_argument, std::string("the plan lacks its ") + part);
  for (const Document& node : document["nodes"])
    if (!node.is_object()) throw Error(ErrorCode::invalid_argument, "the plan is damaged: a node is no object");
  return document;
}

void pack_timelines(Document& document) {
  if (!document.contains("timeline")) return;
  Document& timeline = document["timeline"];
  for (const char* part : {"median", "slowest", "ranges"})
    if (timeline.contains(part)) timeline[part] = pack_timeline(timeline[part]);
}

}  // namespace
}  // namespace profile

std::string profile_to_html(std::string_view json) {
  profile::Document document = profile::reading([&] {
    profile::Document read = profile::parse_profile_or_plan(json);
    profile::pack_timelines(read);
    return read;
  });
  // No "<" stays in the document: text of a model cannot end the script that holds it.
  std::string text;
  for (char c : document.dump(-1, ' ', false, profile::Document::error_handler_t::replace)) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  std::string page = profile::kPageHtml;
  const std::array<std::pair<std::string_view, std::string_view>, 3> parts{
      {{"/*SCRIPT*/", profile::kPageScript}, {"/*PROFILE*/", text}, {"/*STYLE*/", profile::kPageStyle}}};
  // From the last to the first, so that a mark in what was put in is not found.
  for (const auto& [mark, part] : parts) page.replace(page.rfind(mark, page.size()), mark.size(), part);
  return page;
}

}  // namespace treadle
