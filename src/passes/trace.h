// Records, step by step, how the optimizer changes a graph. Nothing is recorded unless a PassTrace::Scope exists on the thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace treadle::passes {

/// Describes how one step changed a node.
struct NodeChange {
  enum class What : uint8_t { made, changed, folded, removed };
  What what = What::made;
  std::string op_type, name;
  std::vector<std::string> sources;  ///< nodes of the original model for which it stands
  std::vector<std::string> took;     ///< removed nodes whose work this node does now, such as "Relu relu_1"
};

struct PassStep {
  std::string pass;
  int64_t num_changes = 0, elapsed_us = 0;
  size_t nodes_before = 0, nodes_after = 0;
  std::vector<NodeChange> changes;
};

/// The reason why a pass did not change a node that it might have changed.
struct Refusal {
  std::string pass, reason;
  bool operator==(const Refusal&) const = default;
};

class PassTrace {
 public:
  /// While this object exists, optimizations on this thread are recorded in the trace. Scopes do not nest.
  class Scope {
   public:
    explicit Scope(PassTrace& trace) { current_ = &trace; }
    ~Scope() { current_ = nullptr; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  static PassTrace* current() { return current_; }

  void begin(std::string_view pass, const Graph& graph);
  void end(const Graph& graph, int64_t num_changes, int64_t elapsed_us);
  void refuse(const Node& node, std::string_view reason, const Node* other, std::string_view rest);

  /// Returns the steps that changed something, in order. A pass may occur several times.
  const std::vector<PassStep>& steps() const { return steps_; }
  /// Returns the nodes of the final graph.
  std::vector<NodeChange> result() const;
  /// Returns, for each pass, the reasons why it did not change the node of this name when it last examined it.
  std::vector<Refusal> refusals(const std::string& node) const;
  /// Returns these reasons for every node that has any, by the node's name.
  const std::map<std::string, std::vector<Refusal>>& all_refusals() const { return refusals_; }
  /// Returns the passes that made or changed nodes that stand for these nodes of the model, each pass once, in order.
  std::vector<std::string> passes_of(const std::vector<std::string>& sources) const;

 private:
  struct Seen {
    std::string op_type, name, output;
    std::vector<std::string> sources;
    Attributes attributes;
    bool moves = false;  // true if the node only moves data
  };
  using Snapshot = std::map<std::pair<const Graph*, NodeId>, Seen>;
  static void look(const Graph& graph, Snapshot& snapshot);

  static thread_local constinit PassTrace* current_;
  std::string pass_;
  size_t nodes_before_ = 0;
  Snapshot before_;
  std::vector<PassStep> steps_;
  std::map<std::string, std::vector<Refusal>> refusals_;
};

/// Describes a value for the reason in a refusal: "float16[2,3]", or "a value of unknown type".
std::string found(const Graph& graph, ValueId value);

/// Records the reason if a trace exists, and returns false: `return declined(conv, "several nodes read its result");`
/// @param other  node whose name is inserted between `reason` and `rest`; may be null
inline bool declined(const Node& node, std::string_view reason, const Node* other = nullptr, std::string_view rest = {}) {
  if (PassTrace* trace = PassTrace::current()) [[unlikely]]
    trace->refuse(node, reason, other, rest);
  return false;
}
/// Like the other declined(), for a reason that is expensive to format: calls `text()` only if a trace exists.
template <typename Text>
  requires std::is_invocable_r_v<std::string, Text>
bool declined(const Node& node, Text&& text) {
  if (PassTrace* trace = PassTrace::current()) [[unlikely]]
    trace->refuse(node, text(), nullptr, {});
  return false;
}
/// Like declined(), for rules: returns nullopt, as in `return no_patch(product, "several nodes read its result");`
template <typename... Reason>
std::nullopt_t no_patch(const Node& node, Reason&&... reason) {
  declined(node, std::forward<Reason>(reason)...);
  return std::nullopt;
}

}  // namespace treadle::passes
