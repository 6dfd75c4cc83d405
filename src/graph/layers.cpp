#include "graph/layers.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace treadle {
namespace {

constexpr std::string_view kScopes = "pkg.torch.onnx.name_scopes";

// Parses a list of strings as Python prints it, such as ['', 'layer1', 'conv2d']. Returns nullopt for other text.
std::optional<std::vector<std::string>> python_strings(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::vector<std::string> strings;
  while (!text.empty()) {
    const char quote = text.front();
    if (quote != '\'' && quote != '"') return std::nullopt;
    std::string& made = strings.emplace_back();
    size_t at = 1;
    for (; at < text.size() && text[at] != quote; ++at) {
      if (text[at] == '\\' && at + 1 < text.size()) ++at;
      made += text[at];
    }
    if (at == text.size()) return std::nullopt;
    text.remove_prefix(at + 1);
    if (text.starts_with(", "))
      text.remove_prefix(2);
    else if (!text.empty())
      return std::nullopt;
  }
  return strings;
}

// Returns all prefixes of a path that end before a separator. The last part of the path, which names the node, is left out.
std::vector<std::string> layers_of_path(std::string_view path) {
  const char separator = path.find('/') != std::string_view::npos ? '/' : '.';
  if (path.starts_with(separator)) path.remove_prefix(1);
  std::vector<std::string> layers;
  for (size_t at = path.find(separator); at != std::string_view::npos; at = path.find(separator, at + 1))
    if (at > 0 && path[at - 1] != separator) layers.emplace_back(path.substr(0, at));
  return layers;
}

auto scopes_of(const Node& node) {
  return std::find_if(node.metadata.begin(), node.metadata.end(), [](const auto& entry) { return entry.first == kScopes; });
}

}  // namespace

std::vector<std::string> layers_of(const Node& node) {
  if (const auto scopes = scopes_of(node); scopes != node.metadata.end())
    if (std::optional<std::vector<std::string>> layers = python_strings(scopes->second); layers && !layers->empty()) {
      layers->pop_back();       // removes the operator's own name
      std::erase(*layers, "");  // removes the scope of the model itself
      return std::move(*layers);
    }
  return node.sources.empty() ? std::vector<std::string>{} : layers_of_path(node.sources.front());
}

void copy_layers(const Node& from, Node& to) {
  if (const auto scopes = scopes_of(from); scopes != from.metadata.end() && scopes_of(to) == to.metadata.end())
    to.metadata.push_back(*scopes);
}

}  // namespace treadle
