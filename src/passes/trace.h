// What the optimiser did to a graph, step by step, for people who ask. Nothing is noted unless a PassTrace is in scope on the thread.
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

/// What became of a node in one step.
struct NodeChange {
  enum class What : uint8_t { made, changed, folded, removed };
  What what = What::made;
  std::string op_type, name;
  std::vector<std::string> sources;  ///< nodes of the model as read that it stands for
  std::vector<std::string> took;     ///< "Relu relu_1": nodes that are no more, and whose work it does
};

struct PassStep {
  std::string pass;
  int64_t num_changes = 0, elapsed_us = 0;
  size_t nodes_before = 0, nodes_after = 0;
  std::vector<NodeChange> changes;
};

/// Why a pass left a node as it was, although it had looked closer.
struct Refusal {
  std::string pass, reason;
  bool operator==(const Refusal&) const = default;
};

class PassTrace {
 public:
  /// While it lives, what the optimiser does on this thread is noted in the trace. Scopes do not nest.
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

  /// Those that changed something, in order. A pass may be there several times.
  const std::vector<PassStep>& steps() const { return steps_; }
  /// The nodes that there are in the end.
  std::vector<NodeChange> result() const;
  /// Of the last time that a pass looked at a node of this name.
  std::vector<Refusal> refusals(const std::string& node) const;
  /// Passes that made or changed what stands for these nodes of the model, each once, in order.
  std::vector<std::string> passes_of(const std::vector<std::string>& sources) const;

 private:
  struct Seen {
    std::string op_type, name, output;
    std::vector<std::string> sources;
    Attributes attributes;
    bool moves = false;  // it computes nothing
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

/// What was found, for a reason: "float16[2,3]", or "a computed value of unknown type".
std::string found(const Graph& graph, ValueId value);

/// False, after the reason has been noted if somebody traces: `return declined(conv, "several nodes read its result");`
/// @param other  is named between the two halves of the reason; may be null
inline bool declined(const Node& node, std::string_view reason, const Node* other = nullptr, std::string_view rest = {}) {
  if (PassTrace* trace = PassTrace::current()) [[unlikely]]
    trace->refuse(node, reason, other, rest);
  return false;
}
/// The same with a reason that takes work to write: `text()` is called only if somebody traces.
template <typename Text>
  requires std::is_invocable_r_v<std::string, Text>
bool declined(const Node& node, Text&& text) {
  if (PassTrace* trace = PassTrace::current()) [[unlikely]]
    trace->refuse(node, text(), nullptr, {});
  return false;
}
/// For rules: `return no_patch(product, "several nodes read its result");`
template <typename... Reason>
std::nullopt_t no_patch(const Node& node, Reason&&... reason) {
  declined(node, std::forward<Reason>(reason)...);
  return std::nullopt;
}

}  // namespace treadle::passes
