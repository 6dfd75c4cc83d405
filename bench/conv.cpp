// Measures convolutions with channels last, each by every method that supports it. Prints microseconds and GFLOP/s of one thread, once with
// the weights in the caches and once with the weights in memory, as in a model whose weights exceed the caches. The time estimates of
// nhwc_method() were fitted to these numbers.
//
//     bench_conv [C M size kernel stride [group]]
//     bench_conv --calibrate FILE
//
// The second form fits the rates in the estimates (kernels::ConvRates) to measured times of 3x3 layers on this machine, in about twenty
// seconds on one core, and writes the rates to FILE in the form that the session's option `conv_rates` takes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "core/values/large_memory.h"
#include "kernels/conv/nhwc.h"
#include "kernels/conv/winograd.h"

using namespace treadle;
using namespace treadle::kernels;

namespace {

struct Layer {
  int64_t C, M, size, kernel, stride, group = 1;
};

std::shared_ptr<Storage> floats(int64_t count) {
  auto storage = allocate_large(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(float));
  auto* data = reinterpret_cast<float*>(storage->data());
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>((state = state * 1664525 + 1013904223) >> 8) / 16777216.0F - 0.5F;
  return storage;
}
float* data_of(const std::shared_ptr<Storage>& storage) { return reinterpret_cast<float*>(storage->data()); }

/// Returns the thread's CPU time, which does not include waiting for a core.
double now_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

/// Returns the shortest of several measured times, because other work on the machine has disturbed that measurement least.
template <typename Run>
double microseconds(Run run, int copies) {
  double best = 1e30;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(120);
  for (int round = 0; round < 5 || std::chrono::steady_clock::now() < end; ++round) {
    const double start = now_us();
    for (int i = 0; i < copies; ++i) run(i);
    const double elapsed = (now_us() - start) / copies;
    if (round > 0) best = std::min(best, elapsed);
  }
  return best;
}

ConvParams params_of(const Layer& l) {
  ConvParams p;
  p.N = 1, p.C = l.C, p.M = l.M, p.group = l.group;
  const int64_t pad = (l.kernel - 1) / 2, out = (l.size + 2 * pad - l.kernel) / l.stride + 1;
  const int64_t in[] = {l.size, l.size}, outs[] = {out, out}, kernel[] = {l.kernel, l.kernel}, strides[] = {l.stride, l.stride},
                pads[] = {pad, pad, pad, pad};
  p.window = make_window(in, outs, kernel, strides, pads, {});
  return p;
}

struct Times {
  NhwcMethod method;
  double warm, cold;  // times in microseconds; warm: the weights are in the caches, cold: the weights are in memory
};

std::vector<Times> times_of(const Layer& l) {
  const ConvParams p = params_of(l);
  std::vector<Times> result;
  const int64_t out = p.window.out[1];
  const auto x = floats(l.size * l.size * l.C), y = floats(out * out * l.M), weights = floats(l.M * l.C / l.group * l.kernel * l.kernel),
             bias = floats(l.M);
  for (const NhwcMethod method : nhwc_methods(p)) {
    const size_t bytes = static_cast<size_t>(nhwc_packed_size(p, method)) * sizeof(float);
    const int copies = static_cast<int>(std::clamp<size_t>((100UL << 20) / std::max<size_t>(bytes, 1), 2, 400));
    const int64_t stride = (static_cast<int64_t>(bytes) + 4095) / 4096 * 1024;
    const auto packed = floats(stride * copies);  // one block for all copies, so that the block lies in huge pages
    for (int i = 0; i < copies; ++i) nhwc_pack(p, method, data_of(weights), data_of(packed) + i * stride);
    const auto scratch = allocate_large(nhwc_scratch_bytes(p, method, 1) + 64);
    ConvEpilogue e;
    e.bias = data_of(bias), e.activation = Unary::relu;
    auto run = [&](int i) {
      nhwc_conv(p, method, data_of(x), data_of(weights), data_of(packed) + i * stride, data_of(y), e, scratch->data(), 1, nullptr);
    };
    result.push_back({method, microseconds([&](int) { run(0); }, 3), microseconds(run, copies)});
  }
  return result;
}

void measure(const Layer& l) {
  const ConvParams p = params_of(l);
  const double flops = 2.0 * static_cast<double>(p.window.out_size() * l.M * l.C / l.group * l.kernel * l.kernel);
  std::string line = fmt::format("{:5} > {:5} @{:3} k{} s{}{}", l.C, l.M, l.size, l.kernel, l.stride, l.group > 1 ? " dw" : "   ");
  for (const auto& [method, warm, cold] : times_of(l)) {
    line += fmt::format(" | {:9} {:7.1f} us {:6.1f} GF/s, cold {:7.1f} us {:6.1f}", nhwc_method_name(method), warm, flops / warm / 1e3,
                        cold, flops / cold / 1e3);
  }
  fmt::print("{} | takes {}\n", line, nhwc_method_name(nhwc_method(p)));
  std::fflush(stdout);
}

struct Sample {
  ConvParams params;
  int out;  // size of Winograd's output tiles, as winograd_estimate() takes it; 0: the direct method
  bool from_memory;
  double us;
};

constexpr const char* kRateNames[] = {"direct", "winograd", "transforms", "cached", "memory"};
constexpr float ConvRates::*kRates[] = {&ConvRates::direct, &ConvRates::winograd, &ConvRates::transforms, &ConvRates::cached,
                                        &ConvRates::memory};

double error_of(const std::vector<Sample>& samples, const ConvRates& rates) {
  double sum = 0;
  for (const Sample& s : samples) sum += std::pow(std::log(winograd_estimate(s.params, s.out, rates, s.from_memory) / s.us), 2);
  return std::sqrt(sum / static_cast<double>(samples.size()));
}

/// Returns the layers' total time with the methods that have the shortest estimates, divided by the total time with the fastest methods.
double choices_over_best(const std::vector<Sample>& samples, const ConvRates& rates) {
  double chosen = 0, best = 0;
  for (size_t i = 0; i < samples.size();) {  // samples with the same layer and the same cache state are neighbors
    size_t end = i, by_estimate = i, fastest = i;
    for (; end < samples.size() && samples[end].params.C == samples[i].params.C && samples[end].params.M == samples[i].params.M &&
           samples[end].params.window.out[1] == samples[i].params.window.out[1] && samples[end].from_memory == samples[i].from_memory;
         ++end) {
      auto estimate = [&](size_t k) { return winograd_estimate(samples[k].params, samples[k].out, rates, samples[k].from_memory); };
      if (estimate(end) < estimate(by_estimate)) by_estimate = end;
      if (samples[end].us < samples[fastest].us) fastest = end;
    }
    chosen += samples[by_estimate].us, best += samples[fastest].us;
    i = end;
  }
  return chosen / best;
}

// Fits the five rates to about a hundred samples, by coordinate descent with shrinking steps.
ConvRates fit(const std::vector<Sample>& samples) {
  ConvRates rates;
  for (float step = 1.5F; step > 1.005F; step = std::sqrt(step)) {
    for (bool better = true; better;) {
      better = false;
      for (float ConvRates::*rate : kRates) {
        for (float factor : {step, 1 / step}) {
          ConvRates candidate = rates;
          candidate.*rate *= factor;
          if (error_of(samples, candidate) >= error_of(samples, rates)) continue;
          rates = candidate;
          better = true;
        }
      }
    }
  }
  return rates;
}

int calibrate(const char* path) {
  std::vector<Sample> samples;
  for (const Layer& layer : std::initializer_list<Layer>{{32, 32, 112, 3, 1},
                                                         {64, 64, 56, 3, 1},
                                                         {128, 128, 28, 3, 1},
                                                         {256, 256, 14, 3, 1},
                                                         {256, 256, 28, 3, 1},
                                                         {512, 512, 7, 3, 1},
                                                         {512, 512, 14, 3, 1},
                                                         {192, 192, 14, 3, 1},
                                                         {128, 32, 28, 3, 1},
                                                         {128, 32, 7, 3, 1},
                                                         {24, 24, 80, 3, 1}}) {
    const ConvParams p = params_of(layer);
    const std::vector<Times> times = times_of(layer);
    for (bool from_memory : {false, true}) {
      for (const Times& t : times) {
        const int out = t.method == NhwcMethod::winograd4 ? 4 : t.method == NhwcMethod::winograd2 ? 2 : 0;
        samples.push_back({p, out, from_memory, from_memory ? t.cold : t.warm});
      }
    }
  }
  const ConvRates rates = fit(samples);
  std::string text = "# What one core reaches, for the session's option conv_rates: floating-point operations, and bytes, a microsecond.\n";
  for (size_t i = 0; i < std::size(kRates); ++i) text += fmt::format("{} {:.0f}\n", kRateNames[i], rates.*kRates[i]);
  fmt::print(
      "{}estimates are off by a factor of {:.2f} (built in: {:.2f}); the ways chosen take {:.3f} of the fastest (built in: {:.3f})\n", text,
      std::exp(error_of(samples, rates)), std::exp(error_of(samples, {})), choices_over_best(samples, rates),
      choices_over_best(samples, {}));
  std::FILE* file = std::fopen(path, "w");
  const bool written = file && std::fputs(text.c_str(), file) >= 0;
  if (!file || std::fclose(file) != 0 || !written) {
    fmt::print(stderr, "{} cannot be written\n", path);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--calibrate") == 0) return calibrate(argv[2]);
  if (argc >= 6) {
    auto at = [&](int i) { return argc > i ? std::atol(argv[i]) : 1; };
    measure({at(1), at(2), at(3), at(4), at(5), at(6)});
    return 0;
  }
  for (const Layer& layer : std::initializer_list<Layer>{
           {64, 64, 56, 3, 1},        {128, 128, 28, 3, 1},        {256, 256, 14, 3, 1},    {512, 512, 7, 3, 1},
           {512, 512, 14, 3, 1},      {192, 192, 14, 3, 1},        {128, 32, 28, 3, 1},     {128, 32, 7, 3, 1},
           {24, 24, 160, 3, 1},       {256, 512, 14, 3, 2},        {1024, 2048, 14, 1, 2},  {64, 256, 56, 1, 1},
           {512, 2048, 7, 1, 1},      {2048, 512, 7, 1, 1},        {256, 1024, 14, 1, 1},   {1024, 256, 14, 1, 1},
           {16, 96, 112, 1, 1},       {96, 24, 56, 1, 1},          {320, 1280, 7, 1, 1},    {3, 64, 224, 7, 2},
           {3, 32, 224, 3, 2},        {32, 32, 112, 3, 1, 32},     {96, 96, 112, 3, 2, 96}, {144, 144, 56, 3, 1, 144},
           {672, 672, 14, 5, 1, 672}, {1152, 1152, 7, 5, 1, 1152}, {40, 40, 56, 7, 1, 40}})
    measure(layer);
}
