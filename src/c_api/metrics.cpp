// Implements the metrics of the C ABI.
#include "treadle/metrics.h"

#include <string>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "treadle/treadle.h"

using namespace treadle::c_api;

struct treadle_metrics_reporter : Handle<treadle_metrics_reporter> {
  treadle::MetricsReporter reporter;
};

extern "C" {

treadle_status* treadle_count_metrics(int on) {
  return call(__func__, {}, [&] { treadle::count_metrics(on != 0); });
}

treadle_status* treadle_metrics_read(void (*report)(void* context, const char* text, size_t size_bytes), void* context) {
  return call(__func__, {needed(report != nullptr, "report")}, [&] {
    const std::string text = treadle::metrics_to_prometheus(treadle::read_metrics());
    report(context, text.c_str(), text.size());
  });
}

treadle_status* treadle_metrics_report_to_file(const char* path, double seconds, treadle_metrics_reporter** out) {
  return call(__func__, {needed(path, "path"), needed(out, "out")},
              [&] { *out = make<treadle_metrics_reporter>(treadle::MetricsReporter(path, seconds)).release(); });
}

treadle_status* treadle_metrics_report_to(void (*report)(void* context, const char* text, size_t size_bytes), void* context, double seconds,
                                          treadle_metrics_reporter** out) {
  return call(__func__, {needed(report != nullptr, "report"), needed(out, "out")}, [&] {
    const auto to = [report, context](const std::string& text) { report(context, text.c_str(), text.size()); };
    *out = make<treadle_metrics_reporter>(treadle::MetricsReporter(to, seconds)).release();
  });
}

void treadle_metrics_reporter_release(treadle_metrics_reporter* reporter) { dispose(reporter); }

}  // extern "C"
