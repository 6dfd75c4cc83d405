#include "exec/memory/shortage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "core/values/allocation.h"

namespace treadle::exec {
namespace {

constexpr size_t kMostNamed = 6;  // maximum number of values and nodes to name, so that the text fits a terminal

}  // namespace

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += fmt::format("{}\"{}\"", i ? ", " : "", names[i]);
  return names.size() > kMostNamed ? text + fmt::format(" and {} more", names.size() - kMostNamed) : text;
}

std::string describe_account(const MemoryAccount* account) {
  const std::shared_ptr<const HeldMemory> held = held_memory(account);
  return held ? describe_account(*held) : std::string();
}

std::string describe_account(const HeldMemory& held) {
  std::string text;
  for (const auto& [name, statistics] : held.accounts) {
    std::string classes;
    for (size_t c = 0; text.empty() && c < kNumMemoryClasses; ++c)
      if (const size_t bytes = statistics.classes[c].bytes; bytes > 0)
        classes += fmt::format("{}{} {}", classes.empty() ? ": " : ", ", memory_class_name(static_cast<MemoryClass>(c)), bytes);
    text += fmt::format("{} has {} bytes{}{}\n", name, statistics.total.bytes,
                        statistics.limit_bytes > 0 ? fmt::format(" of a limit of {}", statistics.limit_bytes) : "", classes);
  }
  return text;
}

namespace {

std::string describe_layers(const std::vector<LiveBytes>& live) {
  std::map<std::string, size_t> bytes;
  for (const LiveBytes& item : live)
    if (!item.layer.empty()) bytes[item.layer] += item.size_bytes;
  std::vector<std::pair<std::string, size_t>> layers(bytes.begin(), bytes.end());
  std::stable_sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(layers.size(), kMostNamed); ++i)
    text += fmt::format("{}{} {} bytes", text.empty() ? "by layer: " : ", ", layers[i].first, layers[i].second);
  if (layers.size() > kMostNamed) text += fmt::format(" and {} layers more", layers.size() - kMostNamed);
  return text.empty() ? text : text + "\n";
}

}  // namespace

std::string describe_largest(std::vector<LiveBytes> live) {
  if (live.empty()) return {};
  std::stable_sort(live.begin(), live.end(), [](const LiveBytes& a, const LiveBytes& b) { return a.size_bytes > b.size_bytes; });
  std::string text;
  for (size_t i = 0; i < std::min(live.size(), kMostNamed); ++i)
    text += fmt::format("{}{} {} bytes", text.empty() ? "largest alive: " : ", ", live[i].what, live[i].size_bytes);
  if (live.size() > kMostNamed) {
    size_t rest = 0;
    for (size_t i = kMostNamed; i < live.size(); ++i) rest += live[i].size_bytes;
    text += fmt::format(" and {} more of {} bytes together", live.size() - kMostNamed, rest);
  }
  return text + "\n" + describe_layers(live);
}

void rethrow_with_memory(const std::function<std::string(const OutOfMemory&)>& details, std::string_view where, Details details_are) {
  const auto go_on_longer = [&](const OutOfMemory& error) {
    if (details_are == Details::if_none && error.is_described()) return;
    std::optional<OutOfMemory> made;
    try {
      const std::string text = details(error);
      made.emplace(error);
      made->add_context(std::string(where));
      made->describe(text);
    } catch (const std::exception&) {  // too little memory is left for a longer text
      return;
    }
    throw OutOfMemory(*made);
  };
  try {
    throw;
  } catch (const OutOfMemory& error) {
    go_on_longer(error);
    throw;
  } catch (const std::bad_alloc&) {
    const OutOfMemory error("out of memory");
    go_on_longer(error);
    throw OutOfMemory(error);
  }
}

}  // namespace treadle::exec
