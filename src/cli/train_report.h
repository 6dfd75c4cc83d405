// What `treadle train` says while it runs: a bar or lines, and a log.
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

/// A mean loss, and the share of right classes where the loss is of classes.
struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy = std::nullopt;
};

struct EpochReport {
  int64_t epoch = 0, num_epochs = 0;  ///< from 1
  uint64_t step = 0;
  double loss = 0, rate = 0;  ///< the mean of the epoch's steps, and the rate of the last
  std::optional<Evaluation> validation = std::nullopt;
  bool is_best = false;
  double seconds = 0;
};

/// One JSON object a line, and events for TensorBoard; each is on its way to the disk when its call returns.
class RunLog {
 public:
  using Fields = std::vector<std::pair<std::string, double>>;
  /// @param path    empty: no lines. @param append  after a run that is resumed.
  /// @param events  the folder of event files; empty: there are none. Each run makes a file of its own there.
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
  /// @param quiet  says nothing.
  TrainProgress(int64_t num_epochs, int64_t steps_an_epoch, bool quiet);
  /// After step `batch` of the epoch (both from 1). Draws at most ten times a second, and on terminals only.
  void step(int64_t epoch, int64_t batch, double loss);
  void epoch(const EpochReport& report);
  /// A line of its own; nothing if it is empty.
  void say(const std::string& line);

 private:
  void clear();

  int64_t num_epochs_, steps_an_epoch_;
  bool quiet_, terminal_, drawn_ = false;
  int64_t steps_done_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace treadle::cli
