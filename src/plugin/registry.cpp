#include "plugin/registry.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "plugin/backend.h"
#include "plugin/host.h"
#include "treadle/error.h"

namespace treadle::plugin {
namespace {

struct Backends {
  std::mutex mutex;
  std::vector<std::shared_ptr<const Backend>> all;
  std::map<std::string, std::string> names;  // all names ever registered; never removed, since callers have pointers to them
};

Backends& backends() {
  static auto* instance = new Backends();  // never destroyed, as sessions may outlive static objects
  return *instance;
}

Property copy(const treadle_backend_property& from, const std::string& backend) {
  if (!from.name || !*from.name)
    throw Error(ErrorCode::invalid_argument, fmt::format("the backend {} has a property without a name", backend));
  Property property{.name = from.name,
                    .device = from.device ? from.device : "cpu",
                    .enabled = from.enabled != 0,
                    .inference_only = from.inference_only != 0,
                    .every_type = from.op_types == nullptr,
                    .op_types = {},
                    .min_nodes = static_cast<size_t>(std::max(1, from.min_nodes))};
  for (const char* const* type = from.op_types; type && *type; ++type)
    property.op_types.push_back(std::string(*type).find(':') == std::string::npos ? fmt::format(":{}", *type) : *type);
  return property;
}

}  // namespace

void register_backend(const treadle_backend& given) {
  const treadle_backend backend = of_any_version(given, /*first_version_bytes=*/sizeof(treadle_backend), "treadle_backend");
  if (!backend.name || !*backend.name || !backend.compile || !backend.run || !backend.release)
    throw Error(ErrorCode::invalid_argument, "a backend needs a name and the callbacks compile, run and release");
  auto made = std::make_shared<Backend>(Backend{backend.name, backend, {}});
  if (made->name.find_first_of(",. ") != std::string::npos || made->name == "NONE")
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is no name for a backend: no commas, dots or blanks, not NONE", made->name));
  for (size_t i = 0; i < backend.num_properties; ++i) made->properties.push_back(copy(backend.properties[i], made->name));
  if (made->properties.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("the backend {} has no properties", made->name));
  made->callbacks.name = made->name.c_str();
  made->callbacks.properties = nullptr;
  Backends& registered = backends();
  std::lock_guard lock(registered.mutex);
  registered.names.emplace(made->name, made->name);
  auto same = std::find_if(registered.all.begin(), registered.all.end(), [&](const auto& other) { return other->name == made->name; });
  if (same == registered.all.end())
    registered.all.push_back(std::move(made));
  else
    *same = std::move(made);
}

std::shared_ptr<const Backend> find_backend(std::string_view name) {
  Backends& registered = backends();
  std::lock_guard lock(registered.mutex);
  auto found = std::find_if(registered.all.begin(), registered.all.end(), [&](const auto& backend) { return backend->name == name; });
  return found == registered.all.end() ? nullptr : *found;
}

std::vector<const char*> list_backends() {
  Backends& registered = backends();
  std::lock_guard lock(registered.mutex);
  std::vector<const char*> names;
  for (const auto& backend : registered.all) names.push_back(registered.names.at(backend->name).c_str());
  return names;
}

void load_plugin(const std::string& path) {
  // The plugin's library is never unloaded, because sessions keep pointers to its code.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Error(ErrorCode::not_found, fmt::format("the plugin \"{}\" does not load: {}", path, dlerror()));
  auto entry = reinterpret_cast<int (*)(const treadle_host*)>(dlsym(library, "treadle_plugin_main"));
  if (!entry) throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is no plugin: it has no treadle_plugin_main", path));
  clear_failure();
  if (entry(&host()) == 0) throw Error(ErrorCode::invalid_argument, fmt::format("the plugin \"{}\" failed: {}", path, take_failure()));
}

}  // namespace treadle::plugin
