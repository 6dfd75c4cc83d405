#include "profile/recording/stream_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/fork_mutex.h"
#include "profile/model/json.h"
#include "profile/recording/stream_sections.h"
#include "treadle/error.h"

namespace treadle::profile {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(100);

std::string thread_payload(const DrainedThread& thread) {
  const ThreadHead head{thread.system_id, thread.name.size()};
  std::string payload(reinterpret_cast<const char*>(&head), sizeof head);
  payload += thread.name;
  return payload;
}

}  // namespace

StreamWriter::StreamWriter(std::string path, RecordWindow& window, Describe describe, Intervals intervals, AwaitedFile awaited)
    : path_(std::move(path)),
      window_(window),
      describe_(std::move(describe)),
      intervals_(std::move(intervals)),
      awaited_(std::move(awaited)),
      process_(fork_generation()),
      from_(window.start()) {
  // If another process waits for the file, its folder is one that many users can write to. So the file must be new and only readable by
  // this user.
  file_ = awaited_.is_over ? open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)
                           : open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) throw Error(ErrorCode::io_error, fmt::format("cannot write the profile to {}: {}", path_, std::strerror(errno)));
  out_.assign(kStreamMagic);
  const Document header{{"version", kStreamVersion}, {"process", getpid()}, {"start_ticks", window.start()}};
  section(kHeaderSection, header.dump());
  write_out();
  if (!error_.empty()) {
    close(file_);
    throw Error(ErrorCode::io_error, error_);
  }
  wake_ = new std::condition_variable;
  thread_ = new std::thread([this] { work(); });
}

StreamWriter::~StreamWriter() {
  if (fork_generation() != process_) return;  // a forked child has no writer thread and must not lock the mutex
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_->notify_all();
  thread_->join();
  delete thread_;
  delete wake_;
  if (awaited_.is_over && !has_ended_) end_awaited();
  close(file_);
}

// Ends a recording that another process waits for: writes the remaining events and renames the file, or removes an unwanted file.
void StreamWriter::end_awaited() noexcept {
  try {
    awaited_.stop();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (!awaited_.is_wanted()) {
    window_.close();
    unlink(path_.c_str());
    return has_ended_.store(true, std::memory_order_release);
  }
  described_ = false;  // writes the plan once more, with the final extents and memory
  write_all();
  window_.close();
  std::rename(path_.c_str(), (error_.empty() ? awaited_.complete : awaited_.incomplete).c_str());
  has_ended_.store(true, std::memory_order_release);
}

void StreamWriter::flush() {
  if (fork_generation() != process_)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is written by the parent of this process", path_));
  std::lock_guard lock(mutex_);
  described_ = false;  // writes the plan again, with the current extents and memory
  write_all();
  if (!error_.empty()) throw Error(ErrorCode::io_error, error_);
}

void StreamWriter::work() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    wake_->wait_for(lock, kPeriod, [&] { return ending_; });
    write_all();
    if (!awaited_.is_over || ending_ || (error_.empty() && !awaited_.is_over())) continue;
    return end_awaited();
  }
}

// Writes the next part of the file: a plan and names if they are new, events, and the mark that ends the part. @pre mutex_ is locked
void StreamWriter::write_all() noexcept {
  if (!error_.empty()) return;
  try {
    write_part();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void StreamWriter::write_part() {
  events_.clear();
  const uint64_t until = read_ticks();
  uint64_t dropped = 0;
  const std::vector<DrainedThread> drained = window_.drain(dropped);
  // Writes the plan again after 1, 2, 4, 8, ... parts, because extents are known only after the first runs.
  if (!drained.empty() && ++num_parts_ == next_plan_) described_ = false, next_plan_ *= 2;
  if (!described_) describe();
  for (const DrainedThread& thread : drained) write_events(thread);
  write_names();
  out_ += events_;
  const Recorder& recorder = window_.recorder();
  Document mark{{"from", from_},
                {"until", until},
                {"dropped", dropped - dropped_},
                {"ns_per_tick", recorder.ns_per_tick()},
                {"start_unix_ns", recorder.unix_ns(window_.start())},
                {"intervals", intervals_()}};
  const ClockAnchor now = Recorder::read_anchor();
  mark["clock"] = {now.ticks, now.steady_ns, now.unix_ns};
  section(kMarkSection, mark.dump());
  dropped_ = dropped;
  from_ = until;
  write_out();
}

void StreamWriter::write_events(const DrainedThread& thread) {
  std::string payload = thread_payload(thread);
  const size_t before = payload.size();
  const RecordEvent* const end = thread.events.data() + thread.events.size();
  for (const RecordEvent* event = thread.events.data(); event != end;) {
    const size_t count = event->has_arguments && event + 1 != end ? 2 : 1;
    if (is_wanted(*event)) {
      payload.append(reinterpret_cast<const char*>(event), count * sizeof(RecordEvent));
      ++num_events_;
    }
    event += count;
  }
  if (payload.size() == before) return;
  std::swap(out_, events_);  // the events go to `events_`, since a plan with their names must come first
  section(kEventsSection, payload);
  std::swap(out_, events_);
}

bool StreamWriter::is_wanted(const RecordEvent& event) {
  const RecordWindow::Limits& limits = window_.limits();
  if (event.kind == RecordKind::memory || event.kind == RecordKind::out_of_memory) return limits.memory && event.end == plan_.account;
  const auto is_of = [&](RecordKind kind) {
    return event.kind == kind || (event.kind == RecordKind::begin && event.phase == static_cast<uint8_t>(kind));
  };
  if (is_of(RecordKind::python)) return limits.python_calls;
  if ((event.kind == RecordKind::phase || event.kind == RecordKind::chunk) && !limits.kernel_phases) return false;
  if (plan_.knows(event.name)) return true;
  if (strangers_.contains(event.name)) return false;
  describe();
  if (plan_.knows(event.name)) return true;
  strangers_.insert(event.name);
  return false;
}

void StreamWriter::describe() {
  plan_ = describe_();
  section(kPlanSection, plan_to_json(plan_));
  described_ = true;
}

void StreamWriter::write_names() {
  const std::vector<RecordName> names = window_.recorder().names_from(num_names_);
  if (names.empty()) return;
  Document list = Document::array();
  for (const RecordName& name : names) list.push_back({name.text, name.arg0_label, name.arg1_label});
  section(kNamesSection, to_text({{"first", num_names_}, {"names", std::move(list)}}));
  num_names_ += names.size();
}

void StreamWriter::section(uint32_t kind, std::string_view payload) {
  const SectionHead head{kind, 0, payload.size()};
  out_.append(reinterpret_cast<const char*>(&head), sizeof head);
  out_ += payload;
}

void StreamWriter::write_out() {
  std::string_view rest = out_;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail(std::strerror(errno));
      break;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  out_.clear();
}

// Stops recording to the file because of an error. Runs of the model continue.
void StreamWriter::fail(const std::string& why) noexcept {
  try {
    error_ = fmt::format("the profile in {} is not complete: {}. Its first {} events are in the file", path_, why, num_events_);
  } catch (const std::exception&) {
    error_ = "the profile is not complete";
  }
  window_.close();
}

}  // namespace treadle::profile
