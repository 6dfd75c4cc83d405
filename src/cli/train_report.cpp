#include "cli/train_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

constexpr auto kBetweenDrawings = std::chrono::milliseconds(100);
constexpr int64_t kBarWidth = 24;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 100) return fmt::format("{} s", whole);
  if (whole < 6000) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

}  // namespace

RunLog::RunLog(const std::string& path, bool append, const std::string& events) {
  if (!events.empty()) events_.emplace(events);
  if (path.empty()) return;
  file_ = std::fopen(path.c_str(), append ? "ae" : "we");
  if (!file_) throw Error(ErrorCode::io_error, fmt::format("cannot write the log \"{}\": {}", path, std::strerror(errno)));
}
RunLog::~RunLog() {
  if (file_) std::fclose(file_);
}

void RunLog::write(const std::string& event, const Fields& numbers, const std::string& text) {
  if (events_) write_events(event, numbers);
  if (!file_) return;
  nlohmann::ordered_json line{{"event", event}};
  for (const auto& [name, number] : numbers) {
    if (number == std::floor(number) && std::abs(number) < 1e15)
      line[name] = static_cast<int64_t>(number);
    else
      line[name] = number;
  }
  if (!text.empty()) line["text"] = text;
  const std::string bytes = line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size() || std::fflush(file_) != 0)
    throw Error(ErrorCode::io_error, fmt::format("cannot write the log: {}", std::strerror(errno)));
}

// Writes numbers for TensorBoard. Writes only those of steps and epochs, because a plot needs a step for each number.
void RunLog::write_events(const std::string& event, const Fields& numbers) {
  if (event != "step" && event != "epoch") return;
  Fields scalars;
  double step = 0;
  for (const auto& [name, number] : numbers) {
    if (name == "step") step = number;
    if (name != "step" && name != "epoch") scalars.emplace_back(event + "/" + name, number);
  }
  events_->write(static_cast<int64_t>(step), scalars);
}

void RunLog::write(const EpochReport& r) {
  Fields fields{
      {"epoch", static_cast<double>(r.epoch)}, {"step", static_cast<double>(r.step)}, {"loss", r.loss}, {"learning_rate", r.rate}};
  if (r.validation) fields.emplace_back("validation_loss", r.validation->loss);
  if (r.validation && r.validation->accuracy) fields.emplace_back("validation_accuracy", *r.validation->accuracy);
  fields.emplace_back("seconds", r.seconds);
  write("epoch", fields);
}

TrainProgress::TrainProgress(int64_t num_epochs, int64_t steps_an_epoch, bool quiet)
    : num_epochs_(num_epochs),
      steps_an_epoch_(steps_an_epoch),
      quiet_(quiet),
      terminal_(::isatty(STDOUT_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

void TrainProgress::clear() {
  if (drawn_) clear_line(stdout);
  drawn_ = false;
}

void TrainProgress::step(int64_t epoch, int64_t batch, double loss) {
  ++steps_done_;
  const auto now = std::chrono::steady_clock::now();
  if (quiet_ || !terminal_ || now - last_ < kBetweenDrawings) return;
  last_ = now;
  const int64_t left = num_epochs_ * steps_an_epoch_ - (epoch - 1) * steps_an_epoch_ - batch;
  const double eta = seconds_since(start_) / static_cast<double>(steps_done_) * static_cast<double>(left);
  const auto filled = static_cast<size_t>(std::clamp<int64_t>(batch * kBarWidth / steps_an_epoch_, 0, kBarWidth));
  clear();
  show("epoch {}/{} [{}{}] {}/{}  loss {:.4f}  {} left", epoch, num_epochs_, std::string(filled, '='),
       std::string(static_cast<size_t>(kBarWidth) - filled, ' '), batch, steps_an_epoch_, loss, duration_text(eta));
  std::fflush(stdout);
  drawn_ = true;
}

void TrainProgress::epoch(const EpochReport& r) {
  std::string line = fmt::format("epoch {:{}}/{}  loss {:.4f}", r.epoch, std::to_string(r.num_epochs).size(), r.num_epochs, r.loss);
  if (r.validation) line += fmt::format("  validation loss {:.4f}", r.validation->loss);
  if (r.validation && r.validation->accuracy) line += fmt::format("  accuracy {:.4f}", *r.validation->accuracy);
  say(line + fmt::format("  rate {:.3g}  {:.1f} s{}", r.rate, r.seconds, r.is_best ? "  best" : ""));
}

void TrainProgress::say(const std::string& line) {
  if (quiet_ || line.empty()) return;
  clear();
  show("{}\n", line);
  std::fflush(stdout);
}

}  // namespace treadle::cli
