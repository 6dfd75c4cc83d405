#include "cli/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "cli/ending.h"
#include "core/base/cpu_info.h"
#include "core/threads/thread_pool.h"
#include "profile/analysis/statistics.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

constexpr double kLeastGain = 0.03;

double remedy_clock_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A session with bound inputs, whose runs can be timed.
class Subject {
 public:
  Subject(const std::string& model, const SessionOptions& options, const std::map<std::string, Datum>& feeds)
      : session_(model, options), binding_(session_) {
    for (const auto& [name, value] : feeds) binding_.bind_input(name, value);
    for (const ValueInfo& info : session_.outputs()) binding_.bind_output(info.name);
    session_.run(binding_);
    session_.run(binding_);
  }
  double run_ms() {
    const double start = remedy_clock_ms();
    session_.run(binding_);
    return remedy_clock_ms() - start;
  }
  const Session& session() const { return session_; }
  std::vector<Datum> outputs() const { return binding_.outputs(); }

 private:
  Session session_;
  IoBinding binding_;
};

struct Measured {
  profile::Summary plain, changed;
  bool faster() const {
    return plain.interval && changed.interval && changed.interval->second < plain.interval->first && gain() >= kLeastGain;
  }
  bool slower() const { return plain.interval && changed.interval && changed.interval->first > plain.interval->second; }
  double gain() const { return 1 - changed.median / plain.median; }
  std::string text() const { return fmt::format("{:.3f} -> {:.3f} ms", plain.median, changed.median); }
};

// Times two sessions in alternation, so that a temporary slowdown of the machine affects both.
Measured measure(Subject& plain, Subject& changed, double seconds) {
  constexpr size_t kLeastRuns = 11, kMostRuns = 2000;
  std::vector<double> a, b;
  const double end = remedy_clock_ms() + seconds * 1e3;
  while (a.size() < kMostRuns && (a.size() < kLeastRuns || remedy_clock_ms() < end)) {
    const bool swapped = a.size() % 2 == 1;
    if (swapped) b.push_back(changed.run_ms());
    a.push_back(plain.run_ms());
    if (!swapped) b.push_back(changed.run_ms());
  }
  return {profile::summarize(a), profile::summarize(b)};
}

// Returns the largest difference relative to the output's largest value, over all float32 outputs; nullopt if there are none or shapes
// differ.
std::optional<double> largest_difference(const std::vector<Datum>& expected, const std::vector<Datum>& actual) {
  std::optional<double> result;
  for (size_t k = 0; k < expected.size(); ++k) {
    if (!expected[k].is_tensor() || expected[k].tensor().dtype() != DType::float32) continue;
    if (!actual[k].is_tensor() || actual[k].tensor().shape() != expected[k].tensor().shape() ||
        actual[k].tensor().dtype() != DType::float32)
      return std::nullopt;
    const float *x = expected[k].tensor().data<float>(), *y = actual[k].tensor().data<float>();
    double largest = 0, difference = 0;
    for (int64_t i = 0; i < expected[k].tensor().num_elements(); ++i) {
      if (!std::isfinite(x[i])) continue;
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      difference = std::max(difference, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    }
    if (largest > 0) result = std::max(result.value_or(0), difference / largest);
  }
  return result;
}

class Trials {
 public:
  explicit Trials(const RemedyTrials& trials) : t_(trials), plain_(t_.model, t_.options, t_.feeds) {
    for (const std::string& dimension : t_.inputs.dimensions) command_ += " --dim " + dimension;
    if (t_.options.intra_op_num_threads > 0) threads_option_ = fmt::format(" --threads {}", t_.options.intra_op_num_threads);
  }

  std::vector<ProfileRemedy> run() {
    attempt("threads", [&] { threads(); });
    attempt("bfloat16", [&] { precision("bfloat16", "compute products in bfloat16"); });
    attempt("int8 weights", [&] { precision("int8_weights", "keep weights in 8 bits"); });
    attempt("denormal numbers", [&] { denormals(); });
    attempt("nodes at once", [&] { nodes_at_once(); });
    attempt("a batch", [&] { batch(); });
    attempt("packed weights", [&] { packed_weights(); });
    attempt("a compiled model", [&] { compiled(); });
    auto rank = [](const ProfileRemedy& r) { return r.saves == "time" ? 0 : r.saves == "memory" ? 1 : 2; };
    std::stable_sort(found_.begin(), found_.end(), [&](const ProfileRemedy& a, const ProfileRemedy& b) {
      return rank(a) != rank(b) ? rank(a) < rank(b) : a.effect > b.effect;
    });
    return std::move(found_);
  }

 private:
  template <typename Work>
  void attempt(std::string_view what, const Work& work) {
    if (t_.trying) t_.trying(what);
    try {
      work();
    } catch (const Error&) {
      // The error is ignored: the model does not support this option.
    }
  }

  void add(std::string title, std::string evidence, const std::string& command, double effect, const char* saves = "time") {
    found_.push_back({std::move(title), std::move(evidence), command, effect, saves});
  }
  std::string bench(const std::string& options) const { return "treadle bench " + t_.model + command_ + options; }

  void threads() {
    const int usable = cpu_info().usable_cpus;
    const int now = t_.options.intra_op_num_threads > 0 ? t_.options.intra_op_num_threads : ThreadPool::shared()->num_threads();
    for (int wanted : {1, usable}) {
      if (wanted == now || (wanted == usable && usable == 1)) continue;
      SessionOptions options = t_.options;
      options.intra_op_num_threads = wanted;
      options.thread_pool = nullptr;
      Subject changed(t_.model, options, t_.feeds);
      const Measured m = measure(plain_, changed, t_.seconds);
      if (m.faster())
        add(fmt::format("use {} thread{}", wanted, wanted == 1 ? "" : "s"), fmt::format("{} with {} in place of {}", m.text(), wanted, now),
            bench(fmt::format(" --threads {}", wanted)), m.gain());
    }
  }

  void precision(const char* name, const char* title) {
    const CpuFeatures& cpu = cpu_info().features;
    if (!t_.options.precision.empty()) return;
    if (std::string_view(name) == "bfloat16" && !cpu.avx512_bf16 && !cpu.amx_bf16) return;
    SessionOptions options = t_.options;
    options.precision = name;
    Subject changed(t_.model, options, t_.feeds);
    const auto difference = largest_difference(plain_.outputs(), changed.outputs());
    if (!difference || *difference > 0.05) return;  // the option changes results too much
    const Measured m = measure(plain_, changed, t_.seconds);
    if (m.faster())
      add(title, fmt::format("{}; outputs differ by {:.1e} of the largest for these inputs", m.text(), *difference),
          bench(threads_option_ + " --option precision=" + name), m.gain());
  }

  void denormals() {
    if (t_.options.set_denormal_as_zero) return;
    SessionOptions options = t_.options;
    options.set_denormal_as_zero = true;
    Subject changed(t_.model, options, t_.feeds);
    const Measured m = measure(plain_, changed, t_.seconds);
    if (m.faster()) add("take denormal numbers for zero", m.text(), bench(threads_option_ + " --option set_denormal_as_zero=1"), m.gain());
  }

  void nodes_at_once() {
    const int threads = t_.options.intra_op_num_threads > 0 ? t_.options.intra_op_num_threads : ThreadPool::shared()->num_threads();
    if (threads < 2 || t_.options.execution_mode == ExecutionMode::parallel) return;
    SessionOptions options = t_.options;
    options.execution_mode = ExecutionMode::parallel;
    Subject changed(t_.model, options, t_.feeds);
    const Measured m = measure(plain_, changed, t_.seconds);
    if (m.faster()) add("run independent nodes at once", m.text(), bench(threads_option_ + " --option execution_mode=parallel"), m.gain());
  }

  // Tries a larger batch, if the first extent of every input is the same symbol and was assumed to be 1. Compares times per sample.
  void batch() {
    constexpr int kBatch = 8;
    if (t_.inputs.default_extent != 1 || !t_.inputs.dimensions.empty() || !t_.inputs.files.empty()) return;
    std::optional<std::string> symbol;
    for (const ValueInfo& info : plain_.session().inputs()) {
      const auto* first = info.shape.empty() ? nullptr : std::get_if<std::string>(&info.shape[0]);
      if (!first || first->empty() || (symbol && *symbol != *first)) return;
      symbol = *first;
      for (size_t axis = 1; axis < info.shape.size(); ++axis)
        // Skips the trial if there are other symbolic extents, because these may depend on the batch size.
        if (std::holds_alternative<std::string>(info.shape[axis])) return;
    }
    if (!symbol) return;
    InputOptions inputs = t_.inputs;
    inputs.dimensions.push_back(fmt::format("{}={}", *symbol, kBatch));
    Subject changed(t_.model, t_.options, make_feeds(plain_.session().inputs(), inputs).values);
    Measured m = measure(plain_, changed, t_.seconds);
    for (double* value : {&m.changed.median, &m.changed.interval->first, &m.changed.interval->second}) *value /= kBatch;
    if (m.faster())
      add(fmt::format("run {} at once", kBatch), m.text() + " for each",
          bench(fmt::format("{} --dim {}={}", threads_option_, *symbol, kBatch)), m.gain());
  }

  void packed_weights() {
    const MemoryReport now = plain_.session().memory();
    const bool is_limited = !std::isinf(t_.options.max_weight_expansion);
    if (!is_limited && now.packed_bytes == 0) return;
    SessionOptions options = t_.options;
    options.max_weight_expansion = is_limited ? SessionOptions().max_weight_expansion : 1;
    Subject changed(t_.model, options, t_.feeds);
    const size_t before = plain_.session().memory_statistics().total.peak_bytes,
                 after = changed.session().memory_statistics().total.peak_bytes;
    if (is_limited) {
      const Measured m = measure(plain_, changed, t_.seconds);
      if (m.faster())
        add("allow transformed weights",
            fmt::format("{}, at {:.1f} -> {:.1f} MB", m.text(), static_cast<double>(before) / 1e6, static_cast<double>(after) / 1e6),
            bench(threads_option_), m.gain());
      return;
    }
    const double gain = 1 - static_cast<double>(after) / static_cast<double>(before);
    if (gain < 0.05) return;
    const Measured m = measure(plain_, changed, t_.seconds);
    add("forbid transformed weights",
        fmt::format("{:.1f} -> {:.1f} MB, at {}{}", static_cast<double>(before) / 1e6, static_cast<double>(after) / 1e6, m.text(),
                    m.slower() ? " (slower)" : ""),
        bench(threads_option_ + " --option max_weight_expansion=1"), gain, "memory");
  }

  void compiled() {
    namespace fs = std::filesystem;
    if (fs::path(t_.model).extension() != ".onnx") return;
    const TemporaryPath file = TemporaryPath::file(".treadle");
    SessionOptions options = t_.options;
    options.compiled_model_filepath = file.path().string();
    { const Session written(t_.model, options); }
    constexpr int kRounds = 8;
    std::vector<double> plain, mapped;
    for (int round = 0; round < kRounds; ++round) {
      plain.push_back(load_ms(t_.model));
      mapped.push_back(load_ms(file.path().string()));
    }
    const Measured m{profile::summarize(plain), profile::summarize(mapped)};
    if (m.faster())
      add("start from a compiled model", "loading takes " + m.text(),
          fmt::format("treadle compile {} -o {}", t_.model, fs::path(t_.model).filename().replace_extension(".treadle").string()), m.gain(),
          "load time");
  }

  double load_ms(const std::string& path) const {
    SessionOptions options = t_.options;
    options.share_weights = false;  // loading must not reuse weights of the original session
    const double start = remedy_clock_ms();
    const Session session(path, options);
    return remedy_clock_ms() - start;
  }

  const RemedyTrials& t_;
  Subject plain_;
  std::string command_, threads_option_;
  std::vector<ProfileRemedy> found_;
};

}  // namespace

std::vector<ProfileRemedy> try_remedies(const RemedyTrials& trials) { return Trials(trials).run(); }

}  // namespace treadle::cli
