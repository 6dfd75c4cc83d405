// Writes a profile as an HTML page: the report as JSON, and a script that shows it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "profile/model/report_json.h"
#include "profile/writers/explanation_page.h"
#include "profile_page.h"
#include "treadle/profile_report.h"

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

// Appends a number as a zigzag varint, in which small numbers of either sign take few bytes.
void append_number(std::string& bytes, int64_t value) {
  auto rest = static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
  for (; rest > 127; rest >>= 7) bytes += static_cast<char>(rest | 128);
  bytes += static_cast<char>(rest);
}

// Packs the events of a timeline. A browser needs seconds to parse a million events as JSON, but 0.1 s in this form. Node, thread and
// start are stored as differences from the previous event, all other fields unchanged. Times are in ns. unpack() in timeline.js is the
// inverse.
std::string packed(const TimelineEvents& timeline) {
  auto ns = [](double us) { return static_cast<int64_t>(std::llround(std::clamp(us, -1e15, 1e15) * 1e3)); };
  const size_t count = timeline.item.size();
  std::string bytes;
  int64_t item = 0, thread = 0, start = 0;
  for (size_t i = 0; i < count; ++i) {
    append_number(bytes, timeline.item[i] - std::exchange(item, timeline.item[i]));
    append_number(bytes, timeline.thread[i] - std::exchange(thread, timeline.thread[i]));
    append_number(bytes, ns(timeline.start_us[i]) - std::exchange(start, ns(timeline.start_us[i])));
    append_number(bytes, ns(timeline.duration_us[i]));
    if (!timeline.phase.empty()) append_number(bytes, timeline.phase[i]);
    if (!timeline.waited_us.empty()) append_number(bytes, ns(timeline.waited_us[i]));
  }
  return fmt::format(R"({{"count":{},"events":{},"has_phases":{},"has_waits":{},"packed":"{}"}})", count, timeline.events,
                     !timeline.phase.empty(), !timeline.waited_us.empty(), base64(bytes));
}

std::string packed(const ProfileReport::Timeline& timeline) {
  std::string threads;
  for (const std::string& name : timeline.threads) threads += (threads.empty() ? "" : ",") + json_text(name);
  return fmt::format(R"({{"threads":[{}],"median":{},"slowest":{}{}}})", threads, packed(timeline.median), packed(timeline.slowest),
                     timeline.ranges ? ",\"ranges\":" + packed(*timeline.ranges) : "");
}

// Returns the page for a JSON document. Escapes "<" in it, so that a name from a model cannot end the script element.
std::string page_of(std::string_view document) {
  std::string text;
  for (char c : document) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  std::string page = kPageHtml;
  const std::array<std::pair<std::string_view, std::string_view>, 3> parts{
      {{"/*SCRIPT*/", kPageScript}, {"/*PROFILE*/", text}, {"/*STYLE*/", kPageStyle}}};
  // Replaces the placeholders from last to first, so that text that looks like a placeholder in inserted parts is not replaced.
  for (const auto& [mark, part] : parts) page.replace(page.rfind(mark, page.size()), mark.size(), part);
  return page;
}

}  // namespace

std::string explanation_to_html(const Explanation& explanation) { return page_of(explanation_to_json(explanation)); }

}  // namespace profile

std::string profile_to_html(const ProfileReport& report) {
  return profile::page_of(profile::report_to_json(report, report.timeline ? profile::packed(*report.timeline) : ""));
}

}  // namespace treadle
