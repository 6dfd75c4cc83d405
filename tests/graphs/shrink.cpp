#include "tests/graphs/shrink.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

constexpr unsigned kMaxSeconds = 30;
constexpr int kMaxTrials = 500;

class Shrinker {
 public:
  Shrinker(const Case& c, const Setting& setting, std::string failure) : best_{clone(c), setting, failure}, class_(class_of(failure)) {}

  Shrunk run() {
    // A failure that depends on the timing of threads does not occur in every run, so the case runs several times.
    int failed = 0;
    for (int i = 0; i < 4; ++i) failed += class_of(run_apart(best_.graph, best_.setting)) == class_;
    times_ = failed == 4 ? 1 : failed > 1 ? 5 : 20;
    for (bool smaller = true; smaller && trials_ < kMaxTrials;) {
      smaller = false;
      for (auto step :
           {&Shrinker::drop_unused, &Shrinker::simplify_setting, &Shrinker::cut_ends, &Shrinker::drop_sets, &Shrinker::drop_outputs,
            &Shrinker::move_outputs_up, &Shrinker::cut_above, &Shrinker::bypass_nodes, &Shrinker::shrink_bodies, &Shrinker::shrink_extents})
        smaller |= (this->*step)();
    }
    return std::move(best_);
  }

 private:
  std::string run_often(const Case& c, const Setting& setting) {
    ++trials_;
    std::string failure = run_apart(c, setting);
    for (int i = 1; i < times_ && failure.empty(); ++i) failure = run_apart(c, setting);
    return failure;
  }

  // Keeps the changed case if it still fails.
  bool attempt(const std::function<bool(Case&)>& change) {
    if (trials_ >= kMaxTrials) return false;
    Case c = clone(best_.graph);
    try {
      if (!change(c)) return false;
      remove_unused(c);
    } catch (const std::exception&) {
      return false;
    }
    if (c.model.graph.outputs.empty()) return false;
    std::string failure = run_often(c, best_.setting);
    if (class_of(failure) != class_) return false;
    best_.graph = std::move(c);
    best_.failure = std::move(failure);
    return true;
  }

  bool simplify_setting() {
    bool any = false;
    for (bool again = true; again;) {
      again = false;
      for (const Setting& setting : simpler(best_.setting)) {
        std::string failure = run_often(best_.graph, setting);
        if (class_of(failure) != class_) continue;
        best_.setting = setting;
        best_.failure = std::move(failure);
        any = again = true;
        break;
      }
    }
    return any;
  }

  bool drop_sets() {
    bool any = false;
    for (size_t i = 0; best_.graph.sets.size() > 1 && i < best_.graph.sets.size();) {
      const bool dropped = attempt([&](Case& c) {
        c.sets.erase(c.sets.begin() + static_cast<int64_t>(i));
        return true;
      });
      any |= dropped;
      if (!dropped) ++i;
    }
    return any;
  }

  bool drop_outputs() {
    bool any = false;
    for (size_t i = 0; best_.graph.model.graph.outputs.size() > 1 && i < best_.graph.model.graph.outputs.size();) {
      const bool dropped = attempt([&](Case& c) {
        c.model.graph.outputs.erase(c.model.graph.outputs.begin() + static_cast<int64_t>(i));
        return true;
      });
      any |= dropped;
      if (!dropped) ++i;
    }
    return any;
  }

  // Replaces an output by an input of its node.
  bool move_outputs_up() {
    bool any = false;
    for (size_t i = 0; i < best_.graph.model.graph.outputs.size(); ++i) {
      for (size_t input = 0; input < 6; ++input) {
        const bool moved = attempt([&](Case& c) {
          auto& output = c.model.graph.outputs[i];
          const onnx::NodeDef* producer = producer_of(c.model.graph, output.name);
          if (producer == nullptr || input >= producer->inputs.size() || producer->inputs[input].empty()) return false;
          const Value value = values_of(c, 0).at(producer->inputs[input]);
          if (value.is_optional) return false;
          output = declare(producer->inputs[input], value.array.dtype, value.is_sequence);
          return true;
        });
        any |= moved;
        if (moved) input = SIZE_MAX;  // starts again with the node of the new output
      }
    }
    return any;
  }

  // Removes many nodes at once. One attempt replaces the first nodes by graph inputs that hold their values. The other removes the last
  // nodes; the outputs of the last node that remains become the graph's only outputs.
  bool cut_ends() {
    bool any = false;
    for (const double part : {0.9, 0.75, 0.5, 0.25, 0.1}) {
      const auto count = [&] { return static_cast<size_t>(part * static_cast<double>(best_.graph.model.graph.nodes.size())); };
      any |= attempt([&](Case& c) {
        for (size_t n = count(); n-- > 0;) replace_by_inputs(c, n);
        return count() > 0;
      });
      any |= attempt([&](Case& c) {
        auto& graph = c.model.graph;
        if (count() + 1 >= graph.nodes.size()) return false;
        graph.nodes.resize(count() + 1);
        graph.outputs.clear();
        const auto values = values_of(best_.graph, 0);
        for (const std::string& output : graph.nodes.back().outputs)
          if (!output.empty() && !values.at(output).is_optional)
            graph.outputs.push_back(declare(output, values.at(output).array.dtype, values.at(output).is_sequence));
        return !graph.outputs.empty();
      });
    }
    return any;
  }

  bool cut_above() {
    bool any = false;
    for (size_t n = best_.graph.model.graph.nodes.size(); n-- > 0;)
      if (n < best_.graph.model.graph.nodes.size()) any |= attempt([&](Case& c) { return replace_by_inputs(c, n); });
    return any;
  }

  // Replaces a node by inputs that have the values which it computes. Does not do this if a value is a sequence.
  bool replace_by_inputs(Case& c, size_t n) {
    std::vector<std::map<std::string, Value>> values;
    for (size_t set = 0; set < c.sets.size(); ++set) values.push_back(values_of(best_.graph, set));
    const std::vector<std::string> outputs = c.model.graph.nodes[n].outputs;
    for (const std::string& output : outputs)
      if (!output.empty() && !values[0].at(output).is_tensor()) return false;
    c.model.graph.nodes.erase(c.model.graph.nodes.begin() + static_cast<int64_t>(n));
    for (const std::string& output : outputs) {
      if (output.empty()) continue;
      const Array& example = values[0].at(output).array;
      onnx::ValueInfoDef info = declare(output, example.dtype);
      info.type.shape.emplace();
      for (int64_t extent : example.dims) {
        onnx::DimDef dim;
        if (c.sets.size() == 1) {
          dim.kind = onnx::DimDef::Kind::value;
          dim.value = extent;
        }
        info.type.shape->push_back(dim);
      }
      c.model.graph.inputs.push_back(std::move(info));
      for (size_t set = 0; set < c.sets.size(); ++set) c.sets[set][output] = values[set].at(output).array;
    }
    return true;
  }

  // Makes the readers of a node read the node's input instead.
  bool bypass_nodes() {
    bool any = false;
    for (size_t n = best_.graph.model.graph.nodes.size(); n-- > 0;) {
      for (size_t input = 0; input < 3 && n < best_.graph.model.graph.nodes.size(); ++input) {
        any |= attempt([&](Case& c) {
          const onnx::NodeDef& node = c.model.graph.nodes[n];
          if (input >= node.inputs.size() || node.inputs[input].empty()) return false;
          const std::string from = node.outputs[0], to = node.inputs[input];
          rename(c.model.graph, from, to);
          return true;
        });
      }
    }
    return any;
  }

  bool shrink_bodies() {
    bool any = false;
    size_t count = 0;
    for_each_body(best_.graph.model.graph, [&](onnx::GraphDef& body) { count += body.nodes.size(); });
    for (size_t which = count; which-- > 0;) {
      for (size_t input = 0; input < 2; ++input) {
        any |= attempt([&](Case& c) {
          size_t at = 0;
          bool changed = false;
          for_each_body(c.model.graph, [&](onnx::GraphDef& body) {
            if (!changed && which >= at && which < at + body.nodes.size()) {
              const onnx::NodeDef& node = body.nodes[which - at];
              if (input < node.inputs.size() && !node.inputs[input].empty()) {
                const std::string from = node.outputs[0], to = node.inputs[input];
                rename(body, from, to);
                changed = true;
              }
            }
            at += body.nodes.size();
          });
          return changed;
        });
      }
    }
    return any;
  }

  // Replaces the extent `from` by `to` everywhere: in inputs, constants and feeds, and as an element of integer constants.
  bool shrink_extents() {
    bool any = false;
    for (int64_t from = 16; from > 1; --from)
      for (int64_t to : {int64_t{1}, from / 2, from - 1})
        any |= to > 0 && to < from && attempt([&](Case& c) { return replace_extent(c, from, to); });
    return any;
  }

  bool drop_unused() {
    const auto before = print(best_.graph);
    return attempt([](Case&) { return true; }) && print(best_.graph) != before;
  }

  static bool replace_extent(Case& c, int64_t from, int64_t to) {
    bool changed = false;
    auto cut = [&](Array& a, bool elements) {
      Array smaller(a.dtype, [&] {
        Dims dims = a.dims;
        for (int64_t& d : dims)
          if (d == from) changed = true, d = to;
        return dims;
      }());
      for (size_t k = 0; k < smaller.size(); ++k) smaller.copy(k, a, place(coordinates(k, smaller.dims), a.dims));
      if (elements && a.dtype == DType::int64)
        for (int64_t& x : smaller.i)
          if (x == from) x = to;
      a = std::move(smaller);
    };
    for (auto& input : c.model.graph.inputs)
      for (auto& dim : *input.type.shape)
        if (dim.kind == onnx::DimDef::Kind::value && dim.value == from) dim.value = to, changed = true;
    for (auto& output : c.model.graph.outputs) output.type.shape.reset();
    for (auto& constant : c.model.graph.initializers) {
      Array value = from_tensor(constant.value);
      cut(value, true);
      constant = initializer(constant.name, value);
    }
    for (Feeds& feeds : c.sets)
      for (auto& [name, value] : feeds) cut(value, false);
    return changed;
  }

  static std::map<std::string, Value> values_of(const Case& c, size_t set) {
    Scope scope;
    Noise none;
    for (const auto& [name, value] : c.sets[set]) scope.set(name, value);
    interpret(c.model.graph, scope, none);
    std::map<std::string, Value> values;
    for (const auto& input : c.model.graph.inputs) values[input.name] = scope.get(input.name);
    for (const auto& constant : c.model.graph.initializers) values[constant.name] = scope.get(constant.name);
    for (const auto& node : c.model.graph.nodes)
      for (const std::string& output : node.outputs)
        if (!output.empty()) values[output] = scope.get(output);
    return values;
  }

  static const onnx::NodeDef* producer_of(const onnx::GraphDef& graph, const std::string& name) {
    for (const auto& node : graph.nodes)
      if (std::find(node.outputs.begin(), node.outputs.end(), name) != node.outputs.end()) return &node;
    return nullptr;
  }

  static void for_each_body(onnx::GraphDef& graph, const std::function<void(onnx::GraphDef&)>& f) {
    for (auto& node : graph.nodes)
      for (auto& attribute : node.attributes)
        if (attribute.g) {
          f(*attribute.g);
          for_each_body(*attribute.g, f);
        }
  }

  // Changes only the readers of the value. The node that computes `from` is removed later if nothing reads it.
  static void rename(onnx::GraphDef& graph, const std::string& from, const std::string& to) {
    for (auto& node : graph.nodes) {
      std::replace(node.inputs.begin(), node.inputs.end(), from, to);
      for (auto& attribute : node.attributes)
        if (attribute.g) rename(*attribute.g, from, to);
    }
    for (auto& output : graph.outputs)
      if (output.name == from) {
        output.name = to;
        if (output.type.shape) output.type.shape.reset();
      }
  }

  static void note_reads(const onnx::GraphDef& graph, std::set<std::string>& read) {
    for (const auto& output : graph.outputs) read.insert(output.name);
    for (const auto& node : graph.nodes) {
      read.insert(node.inputs.begin(), node.inputs.end());
      for (const auto& attribute : node.attributes)
        if (attribute.g) note_reads(*attribute.g, read);
    }
  }

  static void remove_unused_nodes(onnx::GraphDef& graph, const onnx::GraphDef& whole) {
    for (bool again = true; again;) {
      std::set<std::string> read;
      note_reads(whole, read);
      again = std::erase_if(graph.nodes, [&](const onnx::NodeDef& node) {
                return std::none_of(node.outputs.begin(), node.outputs.end(),
                                    [&](const std::string& o) { return !o.empty() && read.contains(o); });
              }) > 0;
      std::erase_if(graph.initializers, [&](const onnx::TensorDef& t) { return !read.contains(t.name); });
    }
    for_each_body(graph, [&](onnx::GraphDef& body) {
      std::set<std::string> read;
      note_reads(whole, read);
      std::erase_if(body.nodes, [&](const onnx::NodeDef& node) {
        return std::none_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& o) { return !o.empty() && read.contains(o); });
      });
      std::erase_if(body.initializers, [&](const onnx::TensorDef& t) { return !read.contains(t.name); });
    });
  }

  static void remove_unused(Case& c) {
    for (int round = 0; round < 3; ++round) remove_unused_nodes(c.model.graph, c.model.graph);
    std::set<std::string> read;
    note_reads(c.model.graph, read);
    std::erase_if(c.model.graph.inputs, [&](const onnx::ValueInfoDef& info) { return !read.contains(info.name); });
    for (Feeds& feeds : c.sets) std::erase_if(feeds, [&](const auto& feed) { return !read.contains(feed.first); });
  }

  Shrunk best_;
  std::string class_;
  int trials_ = 0, times_ = 1;
};

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM ? "hang: no end within the time" : std::string("crash: ") + strsignal(WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? "crash: exit status " + std::to_string(WEXITSTATUS(status)) : "";
}

}  // namespace

std::string run_apart(const Case& c, const Setting& setting) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    alarm(kMaxSeconds);
    std::string result;
    try {
      result = run_case(c, judge(c), setting);
    } catch (const std::exception& error) {
      result = std::string("invalid: ") + error.what();
    }
    if (write(ends[1], result.data(), std::min<size_t>(result.size(), 4000)) < 0) _exit(3);
    _exit(0);
  }
  close(ends[1]);
  std::string result;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) result.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const std::string end = how_it_ended(status);
  return end.empty() ? result : end;
}

std::string class_of(const std::string& failure) {
  std::string result = failure.substr(0, failure.find(':'));
  // The first line of an error names the node. For errors, the text of the second line is added, without quoted names.
  const size_t second = failure.find('\n');
  if (!failure.starts_with("error") || second == std::string::npos) return result;
  bool quoted = false;
  for (size_t at = second + 1; at < failure.size() && failure[at] != '\n' && result.size() < 80; ++at) {
    quoted ^= failure[at] == '"';
    if (!quoted && std::isdigit(static_cast<unsigned char>(failure[at])) == 0) result += failure[at];
  }
  return result;
}

Shrunk shrink(const Case& c, const Setting& setting, const std::string& failure) { return Shrinker(c, setting, failure).run(); }

}  // namespace treadle::graphs
