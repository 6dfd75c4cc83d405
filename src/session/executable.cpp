// Compiles programs for sets of fed, fetched, target and monitored values, when a run first asks for them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>

#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "exec/plan/plans.h"
#include "graph/dead_nodes.h"
#include "session/log.h"
#include "session/run_names.h"
#include "session/session_impl.h"
#include "treadle/error.h"

namespace treadle {

namespace {

// Converts a value's type in one graph to an input's type in another: plain symbols keep their names, and every other unknown extent
// becomes a new symbol.
Type transfer(const Type& type, SymbolTable& symbols) {
  Type result = type;
  if (result.shape) {
    for (Dim& dim : *result.shape) {
      if (dim.is_const()) continue;
      bool plain = dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent();
      dim = plain ? symbols.symbol(to_string(dim)) : symbols.fresh_symbol("fed", false);
    }
  }
  if (result.element) result.element = std::make_shared<const Type>(transfer(*result.element, symbols));
  return result;
}

// Returns the declared type of an initializer that is also an input. A feed must agree with the declaration, not with the initializer's
// extents.
Type declared_type(const ValueInfo& info, SymbolTable& symbols) {
  Type type = Type::tensor(info.dtype);
  if (!info.has_rank) return type;
  SymbolicShape shape;
  for (const auto& extent : info.shape) {
    const auto* number = std::get_if<int64_t>(&extent);
    const auto* name = std::get_if<std::string>(&extent);
    shape.push_back(number ? Dim(*number) : name->empty() ? symbols.fresh_symbol("fed", false) : symbols.symbol(*name));
  }
  type.shape = std::move(shape);
  return type;
}

// Turns a named value of the graph into an input, so that it can be fed. The node that computed it becomes dead if nothing else needs it.
// @param type  type of the input; used if the value is computed, or is an initializer that is declared as an input.
void feed_value(Graph& graph, ValueId id, const Type& type) {
  Value& value = graph.value(id);
  if (value.kind == Value::Kind::input) return;
  if (value.kind != Value::Kind::computed) {
    if (type.kind != Type::Kind::unknown) value.type = type;
    value.kind = Value::Kind::input;
    value.constant = Datum();
    graph.inputs.push_back(id);
    return;
  }
  std::string name = value.name;
  graph.rename_value(id, graph.unique_name(name + "_computed"));
  ValueId input = graph.add_input(name, type);
  graph.replace_uses(id, input);
}

NodeId find_node(const Graph& graph, std::string_view name) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
    if (graph.node(id).name == name) return id;
  return kNoNode;
}

std::vector<std::string> all_names(const Graph& graph) {
  std::vector<std::string> names;
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    names.push_back(graph.node(id).name);
    for (ValueId output : graph.node(id).outputs)
      if (output != kNoValue) names.push_back(graph.value(output).name);
  }
  std::erase(names, std::string());
  return names;
}

// Sets the graph's outputs: first the fetched values, then the values of targets, then those that the monitor watches.
// @return the number of fetched values
size_t choose_outputs(Graph& graph, const Request& request, const Monitor* monitor) {
  std::vector<ValueId> values;
  std::vector<std::string> names;
  auto add = [&](ValueId value, const std::string& name) {
    values.push_back(value);
    names.push_back(name);
  };
  if (request.fetches.empty() && request.targets.empty()) {
    values = graph.outputs;
    names = graph.output_names;
  }
  for (const std::string& name : request.fetches) {
    const size_t position = position_of(graph.output_names, name);
    ValueId value = position < graph.outputs.size() ? graph.outputs[position] : graph.find_value(name);
    if (value == kNoValue)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("Invalid output name: {}: there is no output or other value \"{}\"; is it {}? The outputs are: {}", name,
                              name, nearest_names(name, all_names(graph)), fmt::join(graph.output_names, ", ")));
    add(value, name);
  }
  size_t num_fetched = values.size();
  for (const std::string& name : request.targets) {
    NodeId node = find_node(graph, name);
    ValueId value = graph.find_value(name);
    if (node == kNoNode && value == kNoValue)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("there is no node or value \"{}\" to be a target; is it {}?", name, nearest_names(name, all_names(graph))));
    if (node == kNoNode) {
      add(value, name);
      continue;
    }
    for (ValueId output : graph.node(node).outputs)
      if (output != kNoValue) add(output, graph.value(output).name);
  }
  if (monitor) {
    for (size_t i = 0; i < graph.num_values(); ++i) {
      const Value& value = graph.value(ValueId{static_cast<uint32_t>(i)});
      bool there = value.kind == Value::Kind::input || (value.kind == Value::Kind::computed && graph.is_alive(value.producer));
      if (!there || value.name.empty() || !matches(monitor->pattern, value.name)) continue;
      if (std::find(names.begin(), names.end(), value.name) == names.end()) add(ValueId{static_cast<uint32_t>(i)}, value.name);
    }
  }
  graph.outputs = std::move(values);
  graph.output_names = std::move(names);
  graph.declared_outputs.clear();
  return num_fetched;
}

std::vector<SharedSymbol> find_shared_symbols(const Graph& graph) {
  std::vector<SharedSymbol> shared;
  std::map<std::string, std::pair<size_t, size_t>> first;
  for (size_t input = 0; input < graph.inputs.size(); ++input) {
    const Type& type = graph.type(graph.inputs[input]);
    if (!type.is_tensor() || !type.shape) continue;
    for (size_t axis = 0; axis < type.shape->size(); ++axis) {
      const Dim& dim = (*type.shape)[axis];
      if (dim.is_const() || dim.expr()->kind != Expr::Kind::symbol || dim.data_dependent()) continue;
      const auto [known, is_new] = first.try_emplace(to_string(dim), input, axis);
      if (!is_new) shared.push_back({input, axis, known->second.first, known->second.second});
    }
  }
  return shared;
}

bool has_all_constants(const Graph& graph) {
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const Value& value = graph.value(ValueId{static_cast<uint32_t>(i)});
    if (value.is_constant() && !value.uses.empty() && !value.constant.defined()) return false;
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
    for (const Body& body : graph.node(id).bodies)
      if (!has_all_constants(*body.graph)) return false;
  return true;
}

}  // namespace

const SharedSymbol* Executable::contradicted(std::span<const Datum> feeds) const {
  auto extent = [&](size_t input, size_t axis) {
    const Datum& feed = feeds[input];
    const bool is_there = feed.is_tensor() && static_cast<size_t>(feed.tensor().shape().rank()) > axis;
    return is_there ? feed.tensor().shape()[static_cast<int>(axis)] : int64_t{-1};
  };
  for (const SharedSymbol& shared : shared_symbols) {
    const int64_t later = extent(shared.input, shared.axis), earlier = extent(shared.first_input, shared.first_axis);
    if (later != earlier && later >= 0 && earlier >= 0) return &shared;
  }
  return nullptr;
}

size_t Executable::scalar_with_axes(std::span<const Datum> feeds) const {
  for (size_t input : scalar_inputs)
    if (feeds[input].is_tensor() && feeds[input].tensor().num_elements() != 1) return input;
  return input_names.size();
}

bool Session::Impl::needs_own_symbols(const Executable& executable, std::span<const Datum> feeds) const {
  if (options.strict_symbols || model.impl().compiled) return false;
  const SharedSymbol* shared = executable.contradicted(feeds);
  const size_t scalar = executable.scalar_with_axes(feeds);
  if (!shared && scalar == executable.input_names.size()) return false;
  if (warned_of_symbols.exchange(true)) return true;
  if (!shared) {
    warn(fmt::format("\"{}\" is {} and has no axes in the model; runs of such feeds have a program for any rank",
                     executable.input_names[scalar], describe(feeds[scalar].tensor())));
  } else {
    auto place = [&](size_t input, size_t axis) {
      return fmt::format("axis {} of \"{}\" ({})", axis, executable.input_names[input],
                         feeds[input].tensor().shape()[static_cast<int>(axis)]);
    };
    warn(fmt::format("{} and {} have the symbol {} in the model; runs of such feeds have a program without this symbol",
                     place(shared->first_input, shared->first_axis), place(shared->input, shared->axis),
                     to_string((*executable.graph->type(executable.graph->inputs[shared->input]).shape)[shared->axis])));
  }
  return true;
}

std::shared_ptr<Executable> Session::Impl::finish(std::shared_ptr<Graph> graph, const FinishOptions& finishing) const {
  exec::ProgramOptions lowering = program_options();
  lowering.observable = finishing.observable;
  lowering.share_weights = options.share_weights && !options.allocator && !devices.any();
  // Devices copy constants from the graph later, so they must stay.
  lowering.release_packed = finishing.keep_constants || devices.any() ? nullptr : graph.get();
  lowering.keep_for_file = finishing.for_file;
  lowering.restored = finishing.restored;
  std::shared_ptr<Executable> made = make_executable(graph, lowering);
  made->shared_symbols = find_shared_symbols(*graph);
  for (size_t input = 0; input < graph->inputs.size(); ++input)
    if (const Type& type = graph->type(graph->inputs[input]); type.is_tensor() && type.shape && type.shape->empty())
      made->scalar_inputs.push_back(input);
  made->explain = [this](const Executable& failed, std::span<const Datum> feeds, const Error& error) { explain(failed, feeds, error); };
  return made;
}

// Makes a graph whose outputs are those fed values that the model would compute, to infer their types. The values are outputs because
// rewrites keep the names of outputs. Null: no computed value is fed.
std::unique_ptr<Graph> Session::Impl::types_of_fed(const Request& request) const {
  auto is_computed = [&](const std::string& name) { return !known_inputs.contains(name); };
  if (std::none_of(request.fed.begin(), request.fed.end(), is_computed)) return nullptr;
  return prepare([&](Graph& written) {
    written.outputs.clear();
    written.output_names.clear();
    written.declared_outputs.clear();
    for (const std::string& name : request.fed) {
      const ValueId id = is_computed(name) ? written.find_value(name) : kNoValue;
      if (id == kNoValue) continue;  // the name is unknown: compile() reports it
      written.outputs.push_back(id);
      written.output_names.push_back(name);
    }
  });
}

std::shared_ptr<const Executable> Session::Impl::compile(const Request& request, const Monitor* monitor) const {
  const std::string_view why = monitor               ? "a monitor"
                               : request.own_symbols ? "contradicted symbols"
                               : request.fed.empty() ? "other outputs"
                                                     : "fed values";
  const MakingFurther scope(*this, why);
  return making(fmt::format("the graph for {}", why), [&] { return make_further(request, monitor); });
}

std::shared_ptr<const Executable> Session::Impl::make_further(const Request& request, const Monitor* monitor) const {
  const auto& outputs = main->output_names;
  bool outputs_only = !request.own_symbols && request.fed.empty() && request.targets.empty() && !monitor &&
                      std::all_of(request.fetches.begin(), request.fetches.end(), [&](const std::string& name) {
                        return std::find(outputs.begin(), outputs.end(), name) != outputs.end();
                      });
  CompiledSubgraphs compiled;
  std::unique_ptr<Graph> graph;
  size_t num_fetched = 0;
  if (outputs_only) {
    // The main graph is optimized already, so a copy suffices, unless its constants have been released.
    if (has_all_constants(*main->graph)) {
      graph = main->graph->clone();
    } else {
      graph = prepare();
      compiled = optimize(*graph);
    }
    num_fetched = choose_outputs(*graph, request, nullptr);
  } else {
    const std::unique_ptr<Graph> types = types_of_fed(request);
    graph = prepare(
        [&](Graph& written) {
          num_fetched = choose_outputs(written, request, monitor);
          for (const std::string& name : request.fed) {
            ValueId id = written.find_value(name);
            if (id == kNoValue) throw_no_input(name, main->input_names);
            Type type;
            if (types)
              for (size_t k = 0; k < types->outputs.size(); ++k)
                if (types->output_names[k] == name) type = transfer(types->type(types->outputs[k]), written.symbols());
            for (const ValueInfo& info : model.overridable_initializers())
              if (info.name == name) type = declared_type(info, written.symbols());
            feed_value(written, id, type);
          }
          remove_dead_nodes(written);
        },
        request.own_symbols);
    compiled = optimize(*graph, /*for_file=*/false, /*for_monitor=*/monitor != nullptr);
  }
  remove_dead_nodes(*graph);
  std::erase_if(graph->inputs, [&](ValueId input) { return graph->value(input).uses.empty() && !graph->is_output(input); });
  auto made = finish(std::move(graph), {.keep_constants = request.all_constants || monitor, .observable = monitor != nullptr});
  made->num_fetched = num_fetched;
  if (monitor) {
    made->watched.resize(made->program->slots().size());
    for (size_t i = 0; i < made->output_names.size(); ++i)
      if (matches(monitor->pattern, made->output_names[i]))
        made->watched[made->program->output_slots()[i]].push_back(made->output_names[i]);
  }
  return made;
}

namespace {

bool same_order(std::span<const std::string> a, std::span<const std::string> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// True if both contain the same names, in any order.
bool same_set(std::span<const std::string> a, std::span<const std::string> b) {
  auto within = [](std::span<const std::string> names, std::span<const std::string> all) {
    return std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return std::find(all.begin(), all.end(), name) != all.end(); });
  };
  return same_order(a, b) || (within(a, b) && within(b, a));
}

}  // namespace

std::vector<Datum> in_order_of(std::span<const std::string> fetches, const Executable& executable, std::vector<Datum> results) {
  results.resize(executable.num_fetched);
  const auto names = std::span(executable.output_names).first(executable.num_fetched);
  if (fetches.empty() || same_order(fetches, names)) return results;
  std::vector<Datum> ordered;
  for (const std::string& name : fetches) ordered.push_back(results[position_of(names, name)]);
  return ordered;
}

std::shared_ptr<const Executable> Session::Impl::executable(const Request& request, const Monitor* monitor, bool* compiled) const {
  if (compiled) *compiled = false;
  bool all = request.targets.empty() && (request.fetches.empty() || same_set(request.fetches, main->output_names));
  if (all && request.fed.empty() && !monitor && !request.all_constants && !request.own_symbols) {
    cache_hits.fetch_add(1, std::memory_order_relaxed);
    return main;
  }
  uint64_t number = monitor ? monitor_number.load() : 0;
  const std::shared_ptr<Entry::Made> made = entry_for(request, number);
  std::unique_lock lock(made->mutex);
  if (made->executable) {
    cache_hits.fetch_add(1, std::memory_order_relaxed);
    return made->executable;
  }
  cache_misses.fetch_add(1, std::memory_order_relaxed);
  try {
    const auto start = std::chrono::steady_clock::now();
    made->executable = compile(request, monitor);
    if (log_enabled(LogLevel::info, LogCategory::program))
      log_compiled(*this, request.fetches, request.fed, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  } catch (...) {
    lock.unlock();  // the list's mutex must be locked before an entry's
    const std::lock_guard list_lock(mutex);
    others.remove_if([&](const Entry& entry) { return entry.made == made; });
    throw;
  }
  if (compiled) *compiled = true;
  return made->executable;
}

std::shared_ptr<Session::Impl::Entry::Made> Session::Impl::entry_for(const Request& request, uint64_t number) const {
  std::lock_guard lock(mutex);
  auto entry = std::find_if(others.begin(), others.end(), [&](const Entry& e) {
    return e.monitor == number && e.all_constants == request.all_constants && e.own_symbols == request.own_symbols &&
           e.fetches.empty() == request.fetches.empty() && same_set(e.fetches, request.fetches) && same_set(e.fed, request.fed) &&
           same_set(e.targets, request.targets);
  });
  if (entry != others.end()) {
    others.splice(others.begin(), others, entry);
    return entry->made;
  }
  auto copy = [](std::span<const std::string> names) { return std::vector<std::string>(names.begin(), names.end()); };
  others.push_front({copy(request.fetches), copy(request.fed), copy(request.targets), request.all_constants, request.own_symbols, number});
  const std::shared_ptr<Entry::Made> made = others.front().made;
  // Evicts the least recently used program, except one that is being compiled: a profile must still find that one in the list.
  for (auto oldest = std::prev(others.end()); others.size() > kMaxExecutables && oldest != others.begin(); --oldest) {
    const std::shared_ptr<Entry::Made> evicted = oldest->made;
    const std::unique_lock idle(evicted->mutex, std::try_to_lock);
    if (!idle) continue;
    if (options.node_counters && evicted->executable) keep_counters(evicted->executable->executor->plans(), kept_counters);
    if (evicted->executable) add_bindings(std::array{evicted->executable}, kept_bindings);
    if (log_enabled(LogLevel::info, LogCategory::program)) log_evicted(*this, oldest->fetches, oldest->fed, kMaxExecutables);
    others.erase(oldest);
    cache_evictions.fetch_add(1, std::memory_order_relaxed);
    break;
  }
  return made;
}

std::vector<std::shared_ptr<const Executable>> Session::Impl::compiled_now() const {
  std::vector<std::shared_ptr<const Executable>> all{main};
  for (const Entry& entry : others)
    if (const std::unique_lock idle(entry.made->mutex, std::try_to_lock); idle && entry.made->executable)
      all.push_back(entry.made->executable);
  return all;
}

CacheStatistics Session::Impl::cache_statistics() const {
  std::lock_guard lock(mutex);
  CacheStatistics result = kept_bindings;
  result.hits = cache_hits, result.misses = cache_misses, result.evictions = cache_evictions, result.size = 0;
  add_bindings(compiled_now(), result);
  return result;
}

CacheStatistics Session::cache_statistics() const { return impl_->cache_statistics(); }

}  // namespace treadle
