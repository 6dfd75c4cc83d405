// Implements communicators by a plugin's C callbacks, and registers them by name.
#include "plugin/communicator.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "plugin/backend.h"
#include "plugin/host.h"
#include "treadle/error.h"

namespace treadle {
namespace plugin {
namespace {

constexpr std::string_view kMpi = "mpi", kMpiFile = "treadle_mpi.so";

struct CommunicatorTypes {
  std::mutex mutex;
  std::map<std::string, treadle_communicator_type, std::less<>> by_name;
};
CommunicatorTypes& communicator_types() {
  static auto* instance = new CommunicatorTypes();
  return *instance;
}

class PluginCommunicator final : public Communicator {
 public:
  explicit PluginCommunicator(const treadle_communicator& callbacks) : callbacks_(callbacks) {}
  ~PluginCommunicator() override {
    if (callbacks_.release) callbacks_.release(callbacks_.user);
  }
  PluginCommunicator(const PluginCommunicator&) = delete;
  PluginCommunicator& operator=(const PluginCommunicator&) = delete;

  int rank() const override { return callbacks_.rank; }
  int size() const override { return callbacks_.num_ranks; }
  void all_reduce(void* data, size_t count, DType dtype) override {
    call([&] { return callbacks_.all_reduce(callbacks_.user, &host(), data, count, static_cast<int32_t>(dtype)); });
  }
  void broadcast(void* data, size_t size_bytes, int root) override {
    call([&] { return callbacks_.broadcast(callbacks_.user, &host(), data, size_bytes, root); });
  }
  void fail(const std::string& reason) noexcept override {
    if (callbacks_.tell_failure) callbacks_.tell_failure(callbacks_.user, reason.c_str());
  }

 private:
  template <typename Fn>
  void call(Fn&& fn) {
    clear_failure();
    if (fn() != 0) return;
    std::string text = take_failure();
    throw Error(ErrorCode::timed_out, text.empty() ? "communication failed without a text" : std::move(text));
  }
  treadle_communicator callbacks_;
};

std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&communicator_of), &info) == 0 || !info.dli_fname) return {};
  std::error_code failed;
  const std::filesystem::path path = std::filesystem::canonical(info.dli_fname, failed);
  return failed ? std::filesystem::path() : path.parent_path();
}

/// Searches for the MPI plugin next to this library, where an installation, the build folder and the Python package put it.
void load_mpi() {
  if (const char* file = std::getenv("TREADLE_MPI_PLUGIN"); file && *file) return load_plugin(file);
  const std::filesystem::path folder = own_folder();
  for (const char* place : {"treadle", "plugins", "../plugins", "../../plugins"}) {
    const std::filesystem::path path = folder / place / kMpiFile;
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) return load_plugin(path.string());
  }
  throw Error(ErrorCode::not_found,
              fmt::format("the plugin for MPI, {}, is not beside the library in \"{}\": build it where MPI is installed "
                          "(in Python: `python -m treadle.mpi`), or name its file in TREADLE_MPI_PLUGIN",
                          kMpiFile, folder.string()));
}

std::optional<treadle_communicator_type> find_type(std::string_view name) {
  std::lock_guard lock(communicator_types().mutex);
  auto found = communicator_types().by_name.find(name);
  if (found == communicator_types().by_name.end()) return std::nullopt;
  return found->second;
}

}  // namespace

void register_communicator(const treadle_communicator_type& given) {
  const treadle_communicator_type type =
      of_any_version(given, /*first_version_bytes=*/sizeof(treadle_communicator_type), "treadle_communicator_type");
  if (!type.name || !*type.name || !type.connect)
    throw Error(ErrorCode::invalid_argument, "a type of communicators needs a name and a connect callback");
  std::lock_guard lock(communicator_types().mutex);
  communicator_types().by_name.insert_or_assign(type.name, type);
}

std::shared_ptr<Communicator> communicator_of(const treadle_communicator& given) {
  const treadle_communicator callbacks =
      of_any_version(given, /*first_version_bytes=*/sizeof(treadle_communicator), "treadle_communicator");
  if (!callbacks.all_reduce || !callbacks.broadcast)
    throw Error(ErrorCode::invalid_argument, "a communicator needs the callbacks all_reduce and broadcast");
  if (callbacks.num_ranks < 1 || callbacks.rank < 0 || callbacks.rank >= callbacks.num_ranks)
    throw Error(ErrorCode::invalid_argument, fmt::format("rank {} of {}", callbacks.rank, callbacks.num_ranks));
  return std::make_shared<PluginCommunicator>(callbacks);
}

}  // namespace plugin

std::shared_ptr<Communicator> connect_communicator(std::string_view name, double deadline_s) {
  if (!(deadline_s > 0))
    throw Error(ErrorCode::invalid_argument, fmt::format("the deadline of communication is {} s; it must be above 0", deadline_s));
  auto type = plugin::find_type(name);
  if (!type && name == plugin::kMpi) {
    plugin::load_mpi();
    type = plugin::find_type(name);
  }
  if (!type)
    throw Error(ErrorCode::not_found,
                fmt::format("no plugin has registered the communicator \"{}\"; \"{}\" is found by itself", name, plugin::kMpi));
  treadle_communicator callbacks{};
  callbacks.size = sizeof(callbacks);
  plugin::clear_failure();
  if (type->connect(type->user, &plugin::host(), deadline_s, &callbacks) == 0)
    throw Error(ErrorCode::io_error, fmt::format("cannot connect to \"{}\": {}", name, plugin::take_failure()));
  return plugin::communicator_of(callbacks);
}

std::string launched_communicator() {
  // Environment variables that Open MPI's mpirun sets, or that MPICH's Hydra and Slurm set through PMI.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"})
    if (const char* size = std::getenv(variable); size && std::atoi(size) > 1) return std::string(plugin::kMpi);
  return {};
}

}  // namespace treadle
