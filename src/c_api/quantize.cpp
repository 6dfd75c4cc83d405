// Quantisation and the choice of a precision in the C ABI.
#include "treadle/quantize.h"

#include <algorithm>
#include <cstring>

#include "c_api/values.h"
#include "core/logging.h"
#include "treadle/precision.h"

struct treadle_precision_choice {
  treadle::PrecisionChoice choice;
};

namespace {

using treadle::Error;
using treadle::ErrorCode;
using treadle::c_api::guarded;
using treadle::c_api::require;

// A program that was built against an older header has a shorter struct: what it lacks is zero.
template <typename Struct>
Struct whole(const Struct* given, const char* what) {
  Struct all{};
  if (!given) return all;
  if (given->struct_size < sizeof(size_t) || given->struct_size > 4096)
    throw Error(ErrorCode::invalid_argument, std::string("the struct_size of the ") + what + " is not set");
  std::memcpy(static_cast<void*>(&all), given, std::min(given->struct_size, sizeof all));
  return all;
}

template <typename Value>
Value named(const char* name, const char* what, std::initializer_list<std::pair<const char*, Value>> values) {
  if (!name) return values.begin()->second;
  std::string names;
  for (const auto& [known, value] : values) {
    if (std::strcmp(name, known) == 0) return value;
    names.append(names.empty() ? "" : ", ").append(known);
  }
  throw Error(ErrorCode::invalid_argument, std::string("there is no ") + what + " \"" + name + "\"; there are " + names);
}

std::vector<std::string> patterns(const char* const* texts, size_t count) {
  std::vector<std::string> copies;
  if (count) require(texts, "patterns");
  for (size_t i = 0; i < count; ++i) copies.emplace_back(&require(texts[i], "a pattern"));
  return copies;
}

treadle::QuantizeOptions quantize_options(const treadle_quantize_options* given) {
  using treadle::CalibrationMethod;
  using treadle::QuantizeMode;
  const treadle_quantize_options all = whole(given, "quantize options");
  treadle::QuantizeOptions options;
  options.mode = named<QuantizeMode>(all.mode, "mode",
                                     {{"dynamic", QuantizeMode::dynamic}, {"qdq", QuantizeMode::qdq}, {"weights", QuantizeMode::weights}});
  options.method = named<CalibrationMethod>(
      all.method, "method",
      {{"minmax", CalibrationMethod::minmax}, {"percentile", CalibrationMethod::percentile}, {"entropy", CalibrationMethod::entropy}});
  if (all.weight_bits) options.weight_bits = all.weight_bits;
  if (all.block_size) options.block_size = all.block_size;
  options.per_channel = all.per_tensor == 0;
  options.symmetric = all.asymmetric == 0;
  options.include = patterns(all.include, all.num_include);
  options.exclude = patterns(all.exclude, all.num_exclude);
  return options;
}

treadle::CalibrationSource source_of(const treadle_samples* given) {
  const treadle_samples samples = whole(given, "samples");
  return [samples, next = size_t{0}](std::map<std::string, treadle::Datum>& feeds) mutable {
    if (next == samples.num_samples) return false;
    require(samples.values, "the samples' values");
    feeds = treadle::c_api::to_feeds(samples.input_names, samples.values + next++ * samples.num_inputs, samples.num_inputs);
    return true;
  };
}

}  // namespace

extern "C" {

treadle_status* treadle_model_quantize(const treadle_model* model, const treadle_quantize_options* options, const treadle_samples* samples,
                                       size_t* num_quantized, treadle_model** out) {
  return guarded([&] {
    require(out, "out");
    treadle::QuantizeResult result = treadle::quantize(require(model, "model").model, quantize_options(options), source_of(samples));
    for (const std::string& warning : result.report.warnings()) TREADLE_LOG(warning, "quantised model: {}", warning);
    if (num_quantized)
      *num_quantized = static_cast<size_t>(std::count_if(result.report.nodes.begin(), result.report.nodes.end(),
                                                         [](const treadle::QuantizedNode& node) { return node.quantized; }));
    *out = new treadle_model{std::move(result.model)};
  });
}

treadle_status* treadle_choose_precision(const treadle_model* model, double bound, const treadle_samples* samples,
                                         treadle_precision_choice** out) {
  return guarded([&] {
    require(out, "out");
    treadle::ChoosePrecisionOptions options;
    options.bound = bound;
    *out = new treadle_precision_choice{treadle::choose_precision(require(model, "model").model, source_of(samples), options)};
  });
}

const char* treadle_precision_name(const treadle_precision_choice* choice) { return choice ? choice->choice.precision.c_str() : nullptr; }
double treadle_precision_error(const treadle_precision_choice* choice) { return choice ? choice->choice.error : 0; }
double treadle_precision_speedup(const treadle_precision_choice* choice) { return choice ? choice->choice.speedup : 0; }
void treadle_precision_release(treadle_precision_choice* choice) { delete choice; }

}  // extern "C"
