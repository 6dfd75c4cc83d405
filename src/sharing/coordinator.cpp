#include "sharing/coordinator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <list>
#include <set>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/base/logging.h"
#include "core/files/file.h"
#include "sharing/job_table.h"
#include "sharing/policy.h"
#include "sharing/quantities.h"
#include "treadle/error.h"

namespace treadle::sharing {
namespace {

constexpr size_t kMaxRequestBytes = 4096;
constexpr size_t kMaxClients = 64;
constexpr size_t kMaxControlBytes = 1 << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Client {
  Descriptor fd;
  std::string received, to_send;
  bool done = false;
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw Error(ErrorCode::io_error,
                fmt::format("the socket's path \"{}\" is longer than {} bytes; set TREADLE_SHARING_DIR to a shorter one", path,
                            sizeof address.sun_path - 1));
  path.copy(address.sun_path, path.size());
  return address;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

struct Rule {  // a line of the control file, with the jobs to which it has been applied
  std::string job;
  JobChange change;
  std::set<uint64_t> applied;  // the ids of jobs to which it has been applied
};

}  // namespace

std::string coordinator_socket() { return sharing_folder() + "/coordinator"; }

struct Coordinator::Impl {
  explicit Impl(const CoordinatorOptions& given) : options(given), policy(make_policy(given.policy)), table(JobTable::get()) {
    if (options.period_ms < 1 || options.period_ms > 1000)
      throw Error(ErrorCode::invalid_argument, fmt::format("a period of {} ms; it must be from 1 to 1000", options.period_ms));
    if (!table.shared()) throw Error(ErrorCode::io_error, "the job table cannot be shared; see the warning before");
    if (!table.lock_coordinator())
      throw Error(ErrorCode::io_error,
                  fmt::format("a coordinator runs already: process {}, folder \"{}\"", table.coordinator_pid(), sharing_folder()));
    try {
      listen_on(coordinator_socket());
    } catch (...) {
      table.unlock_coordinator();
      throw;
    }
    table.page().coordinator_beat_ns = now_ns();
  }

  ~Impl() {
    unlink(coordinator_socket().c_str());
    table.unlock_coordinator();
  }

  void listen_on(const std::string& path) {
    const sockaddr_un address = address_of(path);
    listener = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    unlink(path.c_str());  // removes the socket that a killed coordinator has left; this one now holds the lock
    const mode_t before = umask(0177);
    const bool bound = bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const int error = errno;
    umask(before);
    if (!bound || listen(listener.get(), 16) != 0)
      throw Error(ErrorCode::io_error, fmt::format("cannot listen on \"{}\": {}", path, std::strerror(bound ? errno : error)));
  }

  void run(const std::atomic<bool>& stop) {
    uint64_t next_look = now_ns(), next_second = next_look;
    while (!stop.load()) {
      const uint64_t now = now_ns();
      if (now >= next_look) {
        look(now);
        next_look = now + static_cast<uint64_t>(options.period_ms) * 1'000'000;
      }
      if (now >= next_second) {
        table.sweep();
        write_status();
        next_second = now + 1'000'000'000;
      }
      const uint64_t looked = now_ns();  // read only once: after a second reading, the difference below could be negative
      serve(next_look > looked ? static_cast<int>((next_look - looked) / 1'000'000 + 1) : 0);
    }
  }

  void look(uint64_t now) {
    Page& page = table.page();
    page.coordinator_beat_ns = now;
    read_control();
    std::vector<JobView> views;
    std::vector<int> slots;
    std::unordered_map<uint64_t, JobStatus> seen;
    for (int i = 0; i < kMaxJobs; ++i) {
      const JobSlot& slot = page.slots[i];
      if (slot.state.load() != SlotState::live) continue;
      const JobStatus status = status_of(slot);
      auto before = last.find(status.id);
      const JobStatus& since = before == last.end() ? status : before->second;
      JobView view{
          .id = status.id, .job_class = status.job_class, .share = slot.share, .threads = status.threads, .running = status.running > 0};
      view.new_runs = status.runs - since.runs;
      const auto waited = static_cast<double>(status.idle_ns - since.idle_ns) + static_cast<double>(status.gave_way_ns - since.gave_way_ns);
      view.busy_ns = std::max(0.0, static_cast<double>(status.run_ns - since.run_ns) - waited);
      view.average_step_ns = static_cast<double>(status.average_step_ns);
      views.push_back(view);
      slots.push_back(i);
      seen[status.id] = status;
    }
    last = std::move(seen);
    const Decision decision = policy->decide(views, last_look == 0 ? 0 : static_cast<double>(now - last_look), cpu_info().usable_cpus);
    last_look = now;
    page.beside = decision.beside;
    page.max_beside_ns = decision.max_beside_ns;
    for (size_t i = 0; i < slots.size(); ++i) {
      JobSlot& slot = page.slots[slots[i]];
      if (slot.id.load() != views[i].id) continue;
      const uint32_t publishes = decision.guaranteed_publish && views[i].job_class == JobClass::guaranteed ? 1 : 0;
      // These are two statements, because both exchanges must take place.
      const bool share_changed = slot.granted.exchange(decision.granted[i]) != decision.granted[i];
      const bool publishes_changed = slot.publishes.exchange(publishes) != publishes;
      if (share_changed || publishes_changed) refresh(slot);
    }
  }

  // Applies a change to all jobs with this name, or to the job with this id. @return the number of changed jobs
  int apply_to(const std::string& job, const JobChange& change, std::set<uint64_t>* done = nullptr) {
    Page& page = table.page();
    int found = 0;
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(job.data(), job.data() + job.size(), id);
    const bool by_id = error == std::errc() && end == job.data() + job.size();
    for (int i = 0; i < kMaxJobs; ++i) {
      const JobSlot& slot = page.slots[i];
      if (slot.state.load() != SlotState::live) continue;
      const JobStatus status = status_of(slot);
      if (by_id ? status.id != id : status.name != job) continue;
      ++found;
      if (done && !done->insert(status.id).second) continue;
      apply(page, i, change);
    }
    return found;
  }

  void read_control() {
    if (options.control_file.empty()) return;
    struct stat info {};
    if (stat(options.control_file.c_str(), &info) == 0) {
      const auto stamp = std::tuple(info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
      if (stamp != control_stamp) {
        control_stamp = stamp;
        parse_control(info);
      }
    }
    for (Rule& rule : rules) apply_to(rule.job, rule.change, &rule.applied);
  }

  void parse_control(const struct stat& info) {
    rules.clear();
    if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) > kMaxControlBytes) {
      TREADLE_LOG(warning, "the control file \"{}\" is no file of at most {} bytes; it is ignored", options.control_file, kMaxControlBytes);
      return;
    }
    std::ifstream in(options.control_file);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const std::vector<std::string> words = words_of(line.substr(0, line.find('#')));
      if (words.empty()) continue;
      try {
        Rule rule{.job = words[0]};
        for (size_t i = 1; i < words.size(); ++i) parse_change(words[i], rule.change);
        rules.push_back(std::move(rule));
      } catch (const Error& error) {
        TREADLE_LOG(warning, "{}:{}: {}; the line is ignored", options.control_file, number, error.what());
      }
    }
  }

  void write_status() {
    if (options.status_file.empty()) return;
    std::string text = fmt::format("{{\"policy\": \"{}\", \"pid\": {}, \"jobs\": [", policy->name(), getpid());
    const char* separator = "";
    for (const JobStatus& status : list_jobs()) text += fmt::format("{}\n  {}", std::exchange(separator, ","), format_json(status));
    text += "\n]}\n";
    try {
      AtomicFile file(options.status_file);
      file.write(std::as_bytes(std::span(text)));
      file.commit();
      status_failed = false;
    } catch (const Error& error) {
      // A full disk must not stop the coordinator; readers then see older data.
      if (!std::exchange(status_failed, true)) TREADLE_LOG(warning, "the status file: {}", error.what());
    }
  }

  std::string answer(const std::string& line) {
    const std::vector<std::string> words = words_of(line);
    try {
      if (words.empty()) throw Error(ErrorCode::invalid_argument, "an empty request");
      if (words[0] == "ping" && words.size() == 1) return "ok 0\n";
      if (words[0] == "list" && words.size() == 1) {
        const std::vector<JobStatus> jobs = list_jobs();
        std::string text = fmt::format("ok {}\n", jobs.size());
        for (const JobStatus& job : jobs) text += format_status(job) + '\n';
        return text;
      }
      if (words[0] == "policy" && words.size() == 1) return fmt::format("ok 1\n{}\n", policy->name());
      if (words[0] == "policy" && words.size() == 2) {
        policy = make_policy(words[1]);
        return "ok 0\n";
      }
      if (words[0] == "set" && words.size() >= 3) {
        JobChange change;
        for (size_t i = 2; i < words.size(); ++i) parse_change(words[i], change);
        table.sweep();
        if (apply_to(words[1], change) == 0) throw Error(ErrorCode::not_found, fmt::format("there is no job \"{}\"", words[1]));
        return "ok 0\n";
      }
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is no request; requests are ping, list, set and policy", words[0]));
    } catch (const Error& error) {
      return "error " + one_line(error.what()) + '\n';
    }
  }

  void serve(int timeout_ms) {
    std::vector<pollfd> waited{{listener.get(), static_cast<short>(clients.size() < kMaxClients ? POLLIN : 0), 0}};
    for (const Client& client : clients)
      waited.push_back({client.fd.get(), static_cast<short>(client.to_send.empty() ? POLLIN : POLLOUT), 0});
    if (poll(waited.data(), waited.size(), timeout_ms) <= 0) return;
    size_t position = 1;
    for (Client& client : clients)
      if (waited[position++].revents != 0) serve(client);
    std::erase_if(clients, [](const Client& client) { return client.done; });
    if ((waited[0].revents & POLLIN) != 0) accept_client();
  }

  void accept_client() {
    Descriptor fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0) return;
    // The folder's permissions keep other users out. This check works even if someone has changed them.
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || (peer.uid != geteuid() && peer.uid != 0)) return;
    clients.push_back(Client{std::move(fd), {}, {}});
  }

  // Never blocks: a client that sends only half a request, or does not read the answer, must not delay others.
  void serve(Client& client) {
    if (!client.to_send.empty()) {
      const ssize_t sent = send(client.fd.get(), client.to_send.data(), client.to_send.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) client.done = true;
      if (sent > 0) client.to_send.erase(0, static_cast<size_t>(sent));
      return;
    }
    char buffer[1024];
    const ssize_t count = recv(client.fd.get(), buffer, sizeof buffer, 0);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) client.done = true;
    if (count <= 0) return;
    client.received.append(buffer, static_cast<size_t>(count));
    for (size_t end; (end = client.received.find('\n')) != std::string::npos;) {
      client.to_send += answer(client.received.substr(0, end));
      client.received.erase(0, end + 1);
    }
    if (client.received.size() > kMaxRequestBytes) client.done = true;
  }

  CoordinatorOptions options;
  std::unique_ptr<Policy> policy;
  JobTable& table;
  Descriptor listener;
  std::list<Client> clients;
  std::unordered_map<uint64_t, JobStatus> last;  // status of each job at the previous look
  uint64_t last_look = 0;
  std::tuple<ino_t, off_t, time_t, long> control_stamp{};
  std::vector<Rule> rules;
  bool status_failed = false;
};

Coordinator::Coordinator(const CoordinatorOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Coordinator::~Coordinator() = default;
void Coordinator::run(const std::atomic<bool>& stop) { impl_->run(stop); }

std::string ask_coordinator(const std::string& request) {
  const sockaddr_un address = address_of(coordinator_socket());
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{5, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw Error(ErrorCode::not_found, fmt::format("no coordinator listens on \"{}\": {}", coordinator_socket(), std::strerror(errno)));
  const std::string line = request + '\n';
  if (send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    throw Error(ErrorCode::io_error, "the coordinator does not take the request");
  std::string answer;
  for (;;) {
    const size_t first_end = answer.find('\n');
    if (first_end != std::string::npos) {
      if (answer.rfind("error ", 0) == 0) throw Error(ErrorCode::invalid_argument, answer.substr(6, first_end - 6));
      int64_t lines = 0;
      std::from_chars(answer.data() + std::min<size_t>(3, first_end), answer.data() + first_end, lines);
      if (std::count(answer.begin(), answer.end(), '\n') >= lines + 1) return answer.substr(first_end + 1);
    }
    char buffer[4096];
    const ssize_t count = recv(fd.get(), buffer, sizeof buffer, 0);
    if (count <= 0) throw Error(ErrorCode::io_error, "the coordinator went away without an answer");
    answer.append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace treadle::sharing
