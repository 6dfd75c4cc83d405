// The library's side of the functions and types in treadle/plugin.h: nodes, subgraphs and calls as a plugin sees them.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/values/allocation.h"
#include "graph/deferred.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/kernel.h"
#include "treadle/error.h"
#include "treadle/plugin.h"

/// A node with the types of its operands, as passed to plugins.
struct treadle_node {
  const treadle::Node* node = nullptr;
  std::vector<const char*> input_names, output_names;  // empty if the names are unknown
  std::vector<treadle::Type> input_types, output_types;
  std::vector<const treadle::Tensor*> constants;  // one per input; null: the input is not constant
  /// Symbolic extents of outputs, by output and axis. The C interface passes only numbers, so the library's callbacks store symbols here.
  mutable std::map<std::pair<size_t, int>, treadle::Dim> known_extents = {};
  // Attributes that are lists of strings. Each list is joined to one string, with one line per element.
  std::map<std::string, std::string, std::less<>> lines = {};
};

struct treadle_subgraph {
  std::vector<treadle_node> nodes;
  std::vector<const char*> inputs, outputs;
};

struct treadle_gradient {
  treadle::GradientContext& context;
  treadle_node node;
  std::vector<treadle::ValueId> inputs;  // gradients of the node's inputs, set by the plugin
};

struct treadle_call {
  treadle_call(const treadle::RunContext& run, const treadle::Node& of, const treadle::AllocationContext* charged);
  treadle::DeferringOperands& operands() const { return dynamic_cast<treadle::DeferringOperands&>(*context.dynamic_); }

  treadle::RunContext context;
  const treadle::Node* node = nullptr;
  const treadle::AllocationContext* memory = nullptr;  // allocation context of the thread on which the call began
  std::thread::id thread;
  mutable std::vector<treadle::Tensor> inputs;  // contiguous inputs (copied if necessary), filled in on first use
  std::vector<treadle::Tensor> outputs;

  // Protects the members below, which several threads use: the one that called run, the one that completes the call, and those that read
  // operands.
  mutable std::mutex mutex;
  mutable std::exception_ptr failure;        // first exception in a host function of this call, even if the plugin ignores it
  bool returned = false, completed = false;  // `run` has returned TREADLE_PENDING; call_complete() has been called
  std::exception_ptr error;
  std::shared_ptr<treadle::Completion> completion;
  std::shared_ptr<treadle_call> self;  // keeps the call alive while it is pending

  /// Passes the outputs of the call on to the run of the graph.
  /// @throws the stored failure, or an Error for an output that the plugin did not make.
  void take_outputs();
  void rethrow_failure() const;
};

namespace treadle::plugin {

const treadle_host& host();

treadle_node view_of(const Graph& graph, const Node& node);
treadle_node view_of(const CreateContext& context);
treadle_node view_of(const InferContext& context);

/// Copies a struct that a plugin registers. A plugin built with an earlier version of the header has a smaller struct; the fields that it
/// lacks become zero.
/// @throws Error(invalid_argument) if the size is below that of the first version or above that of the present one.
template <typename T>
T of_any_version(const T& given, size_t first_version_bytes, std::string_view name) {
  if (given.size < first_version_bytes || given.size > sizeof(T))
    throw Error(ErrorCode::invalid_argument, fmt::format("{}::size is {}, expected {}", name, given.size, sizeof(T)));
  T copy{};
  std::memcpy(&copy, &given, given.size);
  return copy;
}

/// Clears the text of the previous failure on this thread.
void clear_failure();
/// Returns the text of the failure that a callback has reported on this thread, and clears it. Empty: there is none.
std::string take_failure();

/// Calls a plugin's `run` with the operands of `context`. If the plugin returns TREADLE_PENDING, the kernel is deferred (graph/deferred.h).
/// @throws Error(internal) with the plugin's text, or for an output that the plugin did not make.
void run_call(const Node& node, RunContext& context, int (*run)(void* user, void* state, const treadle_host*, treadle_call*), void* user,
              void* state);

}  // namespace treadle::plugin
