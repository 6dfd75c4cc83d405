// The output of `treadle train` during training: a progress bar or lines, and a log.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "treadle/event_file.h"

namespace treadle::cli {

/// The mean loss over a validation set and, if the loss has classes, the fraction of correct predictions.
struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy = std::nullopt;
};

struct EpochReport {
  int64_t epoch = 0, num_epochs = 0;  ///< epoch: counted from 1
  uint64_t step = 0;
  double loss = 0, rate = 0;  ///< loss: mean over the epoch; rate: learning rate of its last step
  std::optional<Evaluation> validation = std::nullopt;
  bool is_best = false;
  double seconds = 0;
};

/// Writes a log with one JSON object per line, and events for TensorBoard. Each call writes its data to the files before it returns.
class RunLog {
 public:
  using Fields = std::vector<std::pair<std::string, double>>;
  /// @param path    path of the log; empty: no log is written.
  /// @param append  true: appends to an existing log, for a resumed run.
  /// @param events  folder in which each run makes an event file for TensorBoard; empty: none are written.
  RunLog(const std::string& path, bool append, const std::string& events);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;
  void write(const std::string& event, const Fields& numbers, const std::string& text = {});
  void write(const EpochReport& report);

 private:
  void write_events(const std::string& event, const Fields& numbers);

  std::FILE* file_ = nullptr;
  std::optional<train::EventFile> events_;
};

class TrainProgress {
 public:
  /// @param quiet  true: nothing is printed.
  TrainProgress(int64_t num_epochs, int64_t steps_an_epoch, bool quiet);
  /// Must be called after step `batch` of the epoch (both count from 1). Draws only on terminals, at most ten times a second.
  void step(int64_t epoch, int64_t batch, double loss);
  void epoch(const EpochReport& report);
  /// Prints a line of text; prints nothing if it is empty.
  void say(const std::string& line);

 private:
  void clear();

  int64_t num_epochs_, steps_an_epoch_;
  bool quiet_, terminal_, drawn_ = false;
  int64_t steps_done_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace treadle::cli
