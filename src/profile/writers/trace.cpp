// Writes the files of a profile: reports, and traces of all recorded events.
#include "profile/writers/trace.h"

#include <fmt/format.h>

#include <utility>

#include "profile/analysis/trace_rows.h"
#include "profile/writers/chrome_trace.h"
#include "profile/writers/flame.h"
#include "profile/writers/onnxruntime_trace.h"
#include "profile/writers/perfetto_trace.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"

namespace treadle {

std::string profile_to_trace(const Profile& profile, TraceFormat format) {
  profile::TraceView view = profile::view_of(profile);
  view.launches = view.pool_runs = format == TraceFormat::chrome || format == TraceFormat::perfetto;
  if (format != TraceFormat::onnxruntime) view.layers = &profile.trace->layers;
  view.waited = &profile.trace->waited_ns;
  if (!view.launches) view.load = nullptr;  // formats without launches have no row for loading either
  switch (format) {
    case TraceFormat::chrome: return profile::to_chrome_trace(view);
    case TraceFormat::perfetto: return profile::to_perfetto_trace(view);
    case TraceFormat::folded: return profile::to_folded_stacks(view);
    case TraceFormat::speedscope: return profile::to_speedscope(view, "treadle");
    case TraceFormat::onnxruntime: return profile::to_onnxruntime_trace(view);
  }
  throw Error(ErrorCode::internal, "an unknown format of traces");
}

namespace profile {
namespace {

constexpr std::pair<std::string_view, TraceFormat> kTraceEndings[] = {{".pftrace", TraceFormat::perfetto},
                                                                      {".trace.json", TraceFormat::chrome},
                                                                      {".folded", TraceFormat::folded},
                                                                      {".speedscope.json", TraceFormat::speedscope},
                                                                      {".onnxruntime.json", TraceFormat::onnxruntime}};

}  // namespace

const TraceFormat* trace_format_of(std::string_view path) {
  for (const auto& [ending, format] : kTraceEndings)
    if (path.ends_with(ending)) return &format;
  return nullptr;
}

}  // namespace profile

void check_profile_file(std::string_view path) {
  if (path.ends_with(".html") || path.ends_with(".csv") || path.ends_with(".json") || profile::trace_format_of(path)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: a name that ends in .html, .json, .csv, .pftrace, .trace.json, .folded, .speedscope.json or "
                          ".onnxruntime.json is expected",
                          path));
}

std::string profile_file(std::string_view path, const ProfileReport& report, const Profile* profile) {
  check_profile_file(path);
  if (const TraceFormat* format = profile::trace_format_of(path)) {
    static const Profile kNone;
    const Profile& of = profile ? *profile : kNone;  // not copied, because a long run has a million events
    return profile_to_trace(of, *format);
  }
  if (path.ends_with(".html")) return profile_to_html(report);
  if (path.ends_with(".csv")) return profile_to_csv(report);
  return profile_to_json(report);
}

}  // namespace treadle
