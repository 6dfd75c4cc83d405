#include "session/hooks.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "treadle/error.h"

namespace treadle {
namespace {

struct Entry {
  HookId id;
  int group;
  Hook hook;
};
using Entries = std::vector<std::shared_ptr<const Entry>>;

// A list of hooks is replaced as a whole and never changed, so a run can call its hooks without holding a lock. The registry is never
// destroyed, because other threads may run sessions until the process ends.
struct Registry {
  std::mutex mutex;
  std::array<std::shared_ptr<const Entries>, 2> points{std::make_shared<Entries>(), std::make_shared<Entries>()};
  HookId last_id = 0;
};
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

}  // namespace

std::array<std::atomic<int>, 2> hooks::counts{};

HookId register_hook(HookPoint point, int group, Hook hook) {
  auto p = static_cast<size_t>(point);
  if (p >= hooks::counts.size()) throw Error(ErrorCode::invalid_argument, "hooks stand at pre_run or post_run");
  if (!hook) throw Error(ErrorCode::invalid_argument, "the hook is empty");
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  HookId id = ++r.last_id;
  auto entries = std::make_shared<Entries>(*r.points[p]);
  auto at = std::upper_bound(entries->begin(), entries->end(), group, [](int value, const auto& entry) { return value < entry->group; });
  entries->insert(at, std::make_shared<const Entry>(Entry{id, group, std::move(hook)}));
  r.points[p] = std::move(entries);
  hooks::counts[p].fetch_add(1, std::memory_order_release);
  return id;
}

bool unregister_hook(HookId id) {
  Registry& r = registry();
  std::shared_ptr<const Entries> replaced;  // destroyed outside the lock, as a hook may own anything
  std::lock_guard lock(r.mutex);
  for (size_t p = 0; p < r.points.size(); ++p) {
    auto entries = std::make_shared<Entries>(*r.points[p]);
    if (std::erase_if(*entries, [id](const auto& entry) { return entry->id == id; }) == 0) continue;
    replaced = std::exchange(r.points[p], std::move(entries));
    hooks::counts[p].fetch_sub(1, std::memory_order_release);
    return true;
  }
  return false;
}

void hooks::call(HookPoint point, const HookedRun& run) {
  std::shared_ptr<const Entries> entries;
  {
    std::lock_guard lock(registry().mutex);
    entries = registry().points[static_cast<size_t>(point)];
  }
  for (const auto& entry : *entries) entry->hook(run);
}

}  // namespace treadle
