// Implements quantization and the choice of a precision in the C ABI.
#include "treadle/quantize.h"

#include <algorithm>
#include <cstring>

#include "c_api/arguments.h"
#include "c_api/values.h"
#include "core/base/logging.h"
#include "treadle/precision.h"

struct treadle_precision_choice : treadle::c_api::Handle<treadle_precision_choice> {
  treadle::PrecisionChoice choice;
};

namespace {

using namespace treadle::c_api;
using treadle::Error;
using treadle::ErrorCode;

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

Argument fields_of(const treadle_quantize_options& given) {
  return first_fault(
      {each_text(given.include, given.num_include, "options.include"), each_text(given.exclude, given.num_exclude, "options.exclude")});
}

Argument fields_of(const treadle_samples& given) {
  const Argument names = each_text(given.input_names, given.num_inputs, "samples.input_names");
  if (names.faulty() || given.num_samples == 0) return names;
  if (given.num_inputs == 0) return within(0, 1, 1, "samples.num_inputs", "1 or more");
  constexpr size_t kValue = sizeof(const treadle_value*);
  const Argument all = list_of_bytes(given.values, given.num_samples, given.num_inputs * kValue, "samples.values");
  return all.faulty() ? all : each_value(given.values, given.num_samples * given.num_inputs, "samples.values");
}

treadle::QuantizeOptions quantize_options(const treadle_quantize_options& all) {
  using treadle::CalibrationMethod;
  using treadle::QuantizeMode;
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
  options.include = to_strings(all.include, all.num_include);
  options.exclude = to_strings(all.exclude, all.num_exclude);
  return options;
}

treadle::CalibrationSource source_of(const treadle_samples& samples) {
  return [samples, next = size_t{0}](std::map<std::string, treadle::Datum>& feeds) mutable {
    if (next == samples.num_samples) return false;
    feeds = to_feeds(samples.input_names, samples.values + next++ * samples.num_inputs, samples.num_inputs);
    return true;
  };
}

}  // namespace

extern "C" {

treadle_status* treadle_model_quantize(const treadle_model* model, const treadle_quantize_options* options, const treadle_samples* samples,
                                       size_t* num_quantized, treadle_model** out) {
  const treadle_quantize_options how = whole(options, sizeof *options);
  const treadle_samples given = whole(samples, sizeof *samples);
  return call(__func__,
              {handle(model, "model"), sized(options, sizeof *options, "options"), fields_of(how),
               sized(samples, sizeof *samples, "samples"), fields_of(given), needed(out, "out")},
              [&] {
                treadle::QuantizeResult result = treadle::quantize(model->model, quantize_options(how), source_of(given));
                if (num_quantized)
                  *num_quantized = static_cast<size_t>(std::count_if(result.report.nodes.begin(), result.report.nodes.end(),
                                                                     [](const treadle::QuantizedNode& node) { return node.quantized; }));
                *out = make<treadle_model>(std::move(result.model)).release();
              });
}

treadle_status* treadle_choose_precision(const treadle_model* model, double bound, const treadle_samples* samples,
                                         treadle_precision_choice** out) {
  const treadle_samples given = whole(samples, sizeof *samples);
  return call(__func__,
              {handle(model, "model"), needed(samples, "samples"), sized(samples, sizeof *samples, "samples"), fields_of(given),
               needed(out, "out")},
              [&] {
                treadle::ChoosePrecisionOptions options;
                options.bound = bound;
                *out = make<treadle_precision_choice>(treadle::choose_precision(model->model, source_of(given), options)).release();
              });
}

const char* treadle_precision_name(const treadle_precision_choice* choice) {
  return asked<const char*>(choice, nullptr, [](const treadle_precision_choice& c) { return c.choice.precision.c_str(); });
}
double treadle_precision_error(const treadle_precision_choice* choice) {
  return asked<double>(choice, 0, [](const treadle_precision_choice& c) { return c.choice.error; });
}
double treadle_precision_speedup(const treadle_precision_choice* choice) {
  return asked<double>(choice, 0, [](const treadle_precision_choice& c) { return c.choice.speedup; });
}
void treadle_precision_release(treadle_precision_choice* choice) { dispose(choice); }

}  // extern "C"
