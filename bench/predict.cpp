// Measures Trainer::predict() and a session's run of the same model in turn: once with unchanged weights, and once after a training step
// has changed the weights. Prints medians of the CPU time in ms, and their ratios.
//   bench_predict MODEL [BATCH] [RUNS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "treadle/session.h"
#include "treadle/train.h"

namespace {

using namespace treadle;

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// Returns the CPU time of a call of `fn`. The process has one thread, and the time of other processes does not count.
template <typename Fn>
double time_ms(Fn&& fn) {
  const double start = cpu_ms();
  fn();
  return cpu_ms() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Tensor random_input(const ValueInfo& info, int64_t batch) {
  std::vector<int64_t> extents;
  for (const auto& extent : info.shape) extents.push_back(std::holds_alternative<int64_t>(extent) ? std::get<int64_t>(extent) : batch);
  Tensor made(info.dtype, Shape(std::span<const int64_t>(extents)));
  std::mt19937 generator(1);
  if (info.dtype == DType::float32)
    for (float& x : made.span<float>()) x = std::normal_distribution<float>(0, 1)(generator);
  else
    for (int64_t& x : made.span<int64_t>()) x = static_cast<int64_t>(generator() % 100);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "bench_predict MODEL [BATCH] [RUNS]\n"), 2;
  const int64_t batch = argc > 2 ? std::atoll(argv[2]) : 1;
  const int runs = argc > 3 ? std::atoi(argv[3]) : 15;
  const Model model = Model::load(argv[1]);
  SessionOptions options;
  options.intra_op_num_threads = 1;
  train::TrainerOptions training;
  training.session = options;
  training.loss = train::Loss::mean_squared_error;
  training.learning_rate = 1e-9;
  Session session(model, options);
  train::Trainer trainer(model, training);
  train::Feeds feeds;
  for (const ValueInfo& info : session.inputs()) feeds.emplace(info.name, random_input(info, batch));
  const std::vector<Datum> outputs = session.run(feeds);
  trainer.predict(feeds);
  std::vector<double> in_session, in_trainer, after_step;
  for (int i = 0; i < runs; ++i) {
    in_session.push_back(time_ms([&] { session.run(feeds); }));
    in_trainer.push_back(time_ms([&] { trainer.predict(feeds); }));
  }
  const double step = time_ms([&] { trainer.step(feeds, outputs[0].tensor()); });
  for (int i = 0; i < std::min(runs, 5); ++i) {
    trainer.step(feeds, outputs[0].tensor());
    after_step.push_back(time_ms([&] { trainer.predict(feeds); }));
  }
  const double s = median(in_session), p = median(in_trainer), a = median(after_step);
  std::printf("%s batch %lld: session %.2f ms, predict %.2f (%.2f), after a step %.2f (%.2f); first step %.0f ms\n", argv[1],
              static_cast<long long>(batch), s, p, p / s, a, a / s, step);
  return 0;
}
