#include "tests/graphs/session_runs.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "onnx/serialize.h"
#include "tests/graphs/interpreter.h"
#include "treadle/error.h"
#include "treadle/model.h"
#include "treadle/sharing.h"

namespace treadle::graphs {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string scratch_file(const char* extension) {
  return (std::filesystem::temp_directory_path() / ("treadle_graph_" + std::to_string(getpid()) + extension)).string();
}

// A temporary file, removed by the destructor.
struct ScratchFile {
  std::string path;
  ~ScratchFile() { std::filesystem::remove(path); }
};

class SessionRunner : public Runner {
 public:
  SessionRunner(const std::string& model, const Setting& setting) : setting_(setting), random_(setting.partial + setting.cancelled) {
    SessionOptions options;
    options.graph_optimization_level = setting.level;
    options.disabled_passes = setting.skip;
    options.max_patches = setting.max_patches;
    options.reuse_memory = setting.reuse_memory;
    options.intra_op_num_threads = setting.threads;
    if (setting.parallel) {
      options.execution_mode = ExecutionMode::parallel;
      options.inter_op_num_threads = 2;
    }
    if (setting.device) options.device = "sim";
    if (setting.job) options.job = std::make_shared<Job>(JobOptions{.name = "graph"});
    options.memory_fraction = setting.share;
    options.recompute_fraction = setting.recomputed;
    if (setting.budget > 0) options.memory_limit_bytes = size_t{1} << 30U;
    if (setting.file == File::none) {
      session_ = std::make_unique<Session>(Model::from_bytes(bytes_of(model)), options);
      return;
    }
    ScratchFile file{scratch_file(setting.file == File::compiled ? ".treadle" : ".onnx")};
    SessionOptions writing = options;
    if (setting.file == File::exported && setting.level == GraphOptimizationLevel::all) {
      // The file of the optimised graph contains fused operators; sessions do not write such files.
      Model::from_bytes(bytes_of(model)).save(file.path, GraphState::optimized);
    } else {
      (setting.file == File::compiled ? writing.compiled_model_filepath : writing.optimized_model_filepath) = file.path;
      Session writer(Model::from_bytes(bytes_of(model)), writing);
    }
    session_ = std::make_unique<Session>(file.path, options);
  }

  const Session& session() const { return *session_; }

  std::vector<Datum> run(const Feeds& feeds) override {
    std::map<std::string, Datum> data;
    for (const auto& [name, value] : feeds) data.emplace(name, to_tensor(value));
    if (setting_.partial != 0) return run_in_parts(data);
    if (setting_.cancelled != 0) cancel_a_run(data);
    if (setting_.bound) return run_bound(data);
    if (setting_.budget == 0) return session_->run(data);
    // Measures the peak without a limit first. If the limit is then too small for this graph, the run throws before it begins.
    session_->set_memory_limit(size_t{1} << 30U);
    session_->reset_memory_peaks();
    session_->run(data);
    const size_t peak = session_->memory_statistics().total.peak_bytes;
    session_->set_memory_limit(static_cast<size_t>(static_cast<double>(peak) * setting_.budget) + 64);
    try {
      return session_->run(data);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::resource_exhausted) throw;
      session_->set_memory_limit(size_t{1} << 30U);
      return session_->run(data);
    }
  }

 private:
  std::vector<Datum> run_in_parts(const std::map<std::string, Datum>& data) {
    if (random_() % 4 == 0) session_->partial_run(data).advance_steps(random_() % 8);  // a run that is abandoned
    std::map<std::string, Datum> late;
    PartialRun run = begin_in_parts(data, late);
    for (int steps = 0; (run.steps_left() > 0 || !late.empty()) && steps < 1000; ++steps) {
      if (random_() % 8 == 0) session_->run(data);  // makes a whole run between two parts of the partial one
      if (!late.empty() && (run.steps_left() == 0 || random_() % 4 == 0)) {
        run.feed(late.begin()->first, late.begin()->second);
        late.erase(late.begin());
      }
      if (run.steps_left() > 0) run.advance_steps(1 + random_() % 4);
    }
    if (!run.finished()) run.advance();
    return run.outputs();
  }

  // Begins a partial run without some of the feeds. It gets all feeds if the extents are otherwise unknown.
  PartialRun begin_in_parts(const std::map<std::string, Datum>& data, std::map<std::string, Datum>& late) {
    std::map<std::string, Datum> now;
    for (const auto& feed : data) (setting_.partial % 2 == 1 && random_() % 3 == 0 ? late : now).insert(feed);
    if (!late.empty()) {
      try {
        return session_->partial_run(now);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_argument) throw;
        late.clear();
      }
    }
    return session_->partial_run(data);
  }

  void cancel_a_run(const std::map<std::string, Datum>& data) {
    RunOptions options;
    const std::chrono::microseconds wait(random_() % 300);
    std::thread stop([&] {
      std::this_thread::sleep_for(wait);
      options.terminate = true;
    });
    try {
      session_->run(data, {}, &options);
    } catch (const Error& error) {
      stop.join();
      if (error.code() == ErrorCode::cancelled) return;
      throw;
    }
    stop.join();
  }

  std::vector<Datum> run_bound(const std::map<std::string, Datum>& data) {
    const std::vector<Datum> before = session_->run(data);
    IoBinding binding(*session_);
    for (const auto& [name, value] : data) binding.bind_input(name, value);
    std::map<std::string, Datum> free = data;  // feeds to which no output has been bound
    const std::vector<ValueInfo> outputs = session_->outputs();
    for (size_t k = 0; k < outputs.size(); ++k) {
      std::optional<Tensor> memory;
      const bool has_memory = before[k].is_tensor() && before[k].tensor().dtype() != DType::string;
      if (has_memory && k % 3 != 0) memory = Tensor(before[k].tensor().dtype(), before[k].tensor().shape());
      const auto feed = std::find_if(free.begin(), free.end(), [&](const auto& f) {
        return has_memory && f.second.tensor().dtype() == before[k].tensor().dtype() &&
               f.second.tensor().shape() == before[k].tensor().shape();
      });
      if (feed != free.end()) {
        memory = feed->second.tensor();
        free.erase(feed);
      }
      binding.bind_output(outputs[k].name, memory);
    }
    session_->run(binding);
    return binding.outputs();
  }

  Setting setting_;
  std::minstd_rand random_;
  std::unique_ptr<Session> session_;
};

// Chooses random pairs of an input and an output with the same dtype and rank, as states. Inputs get free extents if an output has other
// extents; otherwise `fixed` is set.
std::vector<StatePair> choose_states(Case& c, const std::vector<Expected>& outputs, uint32_t seed, bool& fixed) {
  std::minstd_rand random(seed);
  std::vector<StatePair> pairs;
  std::vector<bool> taken(outputs.size(), false);
  bool changes = c.sets.size() > 1;
  for (const auto& input : c.model.graph.inputs) {
    const Array& before = c.sets[0].at(input.name);
    for (size_t tries = 0; tries < 3; ++tries) {
      const size_t i = random() % outputs.size();
      const Value& after = outputs[i].value;
      if (taken[i] || !after.is_tensor() || after.array.dtype != before.dtype || after.array.rank() != before.rank()) continue;
      taken[i] = true;
      changes = changes || after.array.dims != before.dims;
      pairs.push_back({input.name, c.model.graph.outputs[i].name});
      break;
    }
  }
  for (auto& input : c.model.graph.inputs)
    if (changes && std::any_of(pairs.begin(), pairs.end(), [&](const StatePair& pair) { return pair.input == input.name; }))
      input.type.shape->assign(input.type.shape->size(), onnx::DimDef{});
  for (auto& output : c.model.graph.outputs) output.type.shape.reset();
  fixed = !changes;
  return pairs;
}

}  // namespace

std::unique_ptr<Runner> make_session_runner(const std::string& model, const Setting& setting) {
  return std::make_unique<SessionRunner>(model, setting);
}

bool is_undecided(const Case& c) {
  for (const auto& outputs : judge(c, kThoroughRuns))
    if (std::none_of(outputs.begin(), outputs.end(), [](const Expected& output) { return output.decided; })) return true;
  return false;
}

std::string compare_outputs(const Case& c, const Judgement& judgement, size_t set, const std::vector<Datum>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string difference = compare(outputs[i], judgement[set][i]);
    if (!difference.empty()) difference = compare(outputs[i], judge(c, kThoroughRuns)[set][i]);
    if (!difference.empty()) return "output " + c.model.graph.outputs[i].name + ": " + difference;
  }
  return {};
}

std::string run_states(const Case& original, const Judgement& judgement, const Setting& setting) {
  Case c = clone(original);
  std::set<std::string> names;
  for (const auto& output : c.model.graph.outputs)
    if (!names.insert(output.name).second) return {};
  bool fixed = false;
  const std::vector<StatePair> pairs = choose_states(c, judgement[0], setting.states, fixed);
  c.sets.resize(1);
  if (pairs.empty()) return {};
  const SessionRunner runner(onnx::serialize_model(c.model), setting);
  std::map<std::string, Datum> feeds, initial;
  for (const auto& [name, value] : c.sets[0]) feeds.emplace(name, to_tensor(value));
  for (const StatePair& pair : pairs) initial.insert(feeds.extract(pair.input));
  StatefulRun run(runner.session(), pairs, std::move(initial));
  for (int step = 0; step < 4; ++step) {
    std::vector<Expected> expected;
    try {
      expected = judge(c)[0];
    } catch (const Invalid&) {
      return {};
    }
    std::vector<Datum> outputs;
    try {
      outputs = run.run(feeds);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument && is_undecided(c)) return {};
      throw;
    }
    size_t next = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string& name = c.model.graph.outputs[i].name;
      const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const StatePair& p) { return p.output == name; });
      const Datum value = pair == pairs.end() ? outputs.at(next++) : run.state(pair->input);
      std::string difference = compare(value, expected[i]);
      if (!difference.empty()) difference = compare(value, judge(c, kThoroughRuns)[0][i]);
      if (!difference.empty()) return "wrong: step " + std::to_string(step) + ", output " + name + ": " + difference;
    }
    for (const StatePair& pair : pairs) {
      Array& state = c.sets[0].at(pair.input);
      const Dims before = state.dims;
      state = from_datum(run.state(pair.input)).array;
      if (state.dims.size() != before.size() || (fixed && state.dims != before)) return {};
      if (state.size() > 500 || std::any_of(state.f.begin(), state.f.end(), [](double x) { return !(std::fabs(x) < 1e4); }) ||
          std::any_of(state.i.begin(), state.i.end(), [](int64_t x) { return x > 10'000 || x < -10'000; }))
        return {};
    }
  }
  return {};
}

std::string run_clients(const Case& c, const Judgement& judgement, const Setting& setting) {
  const SessionRunner runner(onnx::serialize_model(c.model), setting);
  const Session& session = runner.session();
  std::vector<std::future<std::string>> clients;
  for (size_t first = 0; first < 3; ++first)
    clients.push_back(std::async(std::launch::async, [&, first]() -> std::string {
      for (size_t turn = 0; turn < 4; ++turn) {
        const size_t set = (first + turn) % c.sets.size();
        std::map<std::string, Datum> feeds;
        for (const auto& [name, value] : c.sets[set]) feeds.emplace(name, to_tensor(value));
        const std::string difference = compare_outputs(c, judgement, set, session.run(feeds));
        if (!difference.empty()) return "wrong: client " + std::to_string(first) + ", feeds " + std::to_string(set) + ", " + difference;
      }
      return {};
    }));
  std::string result;
  std::exception_ptr error;
  for (auto& client : clients) {
    try {
      const std::string difference = client.get();
      if (result.empty()) result = difference;
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return result;
}

namespace {

// Returns the values that nodes of the main graph compute, except optionals.
std::map<std::string, Value> values_of(const Case& c) {
  std::map<std::string, Value> values;
  Scope scope;
  Noise none;
  for (const auto& [name, value] : c.sets[0]) scope.set(name, value);
  interpret(c.model.graph, scope, none);
  for (const auto& node : c.model.graph.nodes)
    for (const std::string& name : node.outputs)
      if (!name.empty() && !scope.get(name).is_optional) values[name] = scope.get(name);
  return values;
}

// Makes the value an input, with changed numbers if they are floats.
void feed_instead(Case& c, const std::string& name, Array value) {
  for (auto& node : c.model.graph.nodes) std::replace(node.outputs.begin(), node.outputs.end(), name, name + "_not_fed");
  c.model.graph.inputs.push_back(declare(name, value.dtype));
  for (size_t k = 0; value.floats() && k < value.size(); ++k) value.set(k, value.f[k] + 0.25);
  c.sets[0][name] = std::move(value);
}

}  // namespace

std::string run_fetches(const Case& original, const Setting& setting) {
  std::minstd_rand random(setting.fetches);
  const SessionRunner runner(onnx::serialize_model(original.model), setting);
  std::map<std::string, Value> values = values_of(original);
  auto one_of_them = [&] { return std::next(values.begin(), static_cast<int64_t>(random() % values.size())); };
  for (int turn = 0; turn < 3 && !values.empty(); ++turn) {
    Case c = clone(original);
    c.sets.resize(1);
    c.model.graph.outputs.clear();
    std::vector<std::string> wanted;
    for (int tries = 0; tries < 4; ++tries) {
      const auto& [name, value] = *one_of_them();
      if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) continue;
      wanted.push_back(name);
      c.model.graph.outputs.push_back(declare(name, value.array.dtype, value.is_sequence));
    }
    const auto& [name, value] = *one_of_them();
    const bool feeds_it = turn > 0 && value.is_tensor() && std::find(wanted.begin(), wanted.end(), name) == wanted.end();
    if (feeds_it) feed_instead(c, name, value.array);
    Judgement expected;
    try {
      expected = judge(c);
    } catch (const Invalid&) {  // the case with the changed numbers is not valid
      continue;
    }
    std::map<std::string, Datum> feeds;
    for (const auto& [input, array] : c.sets[0]) feeds.emplace(input, to_tensor(array));
    const std::string difference = compare_outputs(c, expected, 0, runner.session().run(feeds, wanted));
    if (!difference.empty())
      return "wrong: fetched in turn " + std::to_string(turn) + (feeds_it ? ", " + name + " fed" : "") + ", " + difference;
  }
  return {};
}

}  // namespace treadle::graphs
