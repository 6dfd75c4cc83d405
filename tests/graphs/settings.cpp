#include "tests/graphs/settings.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "core/thread_pool.h"
#include "device/sim/sim_device.h"
#include "exec/run/frame.h"
#include "exec/schedule/placed_program.h"
#include "graph/graph.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "treadle/error.h"
#include "treadle/model.h"
#include "treadle/sharing.h"

namespace treadle::graphs {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string scratch_file(const char* extension) {
  return (std::filesystem::temp_directory_path() / ("treadle_graph_" + std::to_string(getpid()) + extension)).string();
}

// A file that goes when this does.
struct ScratchFile {
  std::string path;
  ~ScratchFile() { std::filesystem::remove(path); }
};

// One place to run the sets of feeds.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<Datum> run(const Feeds& feeds) = 0;
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
    if (setting.budget > 0) options.memory_limit_bytes = size_t{1} << 30U;
    if (setting.file == File::none) {
      session_ = std::make_unique<Session>(Model::from_bytes(bytes_of(model)), options);
      return;
    }
    ScratchFile file{scratch_file(setting.file == File::compiled ? ".treadle" : ".onnx")};
    SessionOptions writing = options;
    (setting.file == File::compiled ? writing.compiled_model_filepath : writing.optimized_model_filepath) = file.path;
    { Session writer(Model::from_bytes(bytes_of(model)), writing); }
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
    // Where the limit is too small for this graph, the run says so before it begins.
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
    if (random_() % 4 == 0) session_->partial_run(data).advance_steps(random_() % 8);  // given up
    std::map<std::string, Datum> late;
    PartialRun run = begin_in_parts(data, late);
    for (int steps = 0; (run.steps_left() > 0 || !late.empty()) && steps < 1000; ++steps) {
      if (random_() % 8 == 0) session_->run(data);  // between the parts of another one
      if (!late.empty() && (run.steps_left() == 0 || random_() % 4 == 0)) {
        run.feed(late.begin()->first, late.begin()->second);
        late.erase(late.begin());
      }
      if (run.steps_left() > 0) run.advance_steps(1 + random_() % 4);
    }
    if (!run.finished()) run.advance();
    return run.outputs();
  }

  // Without some of the feeds, unless only they tell extents.
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
    IoBinding binding(*session_);
    for (const auto& [name, value] : data) binding.bind_input(name, value);
    for (const auto& output : session_->outputs()) binding.bind_output(output.name);
    session_->run(binding);
    return binding.outputs();
  }

  Setting setting_;
  std::minstd_rand random_;
  std::unique_ptr<Session> session_;
};

class ProgramRunner : public Runner {
 public:
  ProgramRunner(const std::string& model, const Setting& setting) : pool_(std::max(setting.threads, 1)) {
    graph_ = onnx::import_graph(onnx::parse_model_bytes(bytes_of(model), nullptr, {}));
    onnx::upgrade(*graph_);
    passes::PipelineOptions pipeline{.skip = setting.skip, .max_patches = setting.max_patches, .verify = true};
    if (setting.level == GraphOptimizationLevel::disable_all)
      passes::canonicalise(*graph_);
    else
      passes::optimize(*graph_, pipeline);
    verify(*graph_);
    const bool streams = setting.where != "readiness", readiness = setting.where == "readiness";
    program_ = std::make_unique<exec::Program>(graph_, exec::ProgramOptions{.reuse_memory = setting.reuse_memory,
                                                                            .parallel = streams || readiness,
                                                                            .always_parallel = readiness,
                                                                            .pieces_in_place = readiness});
    if (readiness) {
      control_.pool = &pool_;
      control_.inter_op_threads = setting.threads;
    } else {
      place(setting.where == "several" ? 2 : 1, setting.where == "nodes");
    }
  }

  std::vector<Datum> run(const Feeds& feeds) override {
    std::vector<Datum> data, outputs(graph_->outputs.size());
    for (ValueId input : graph_->inputs) data.emplace_back(to_tensor(feeds.at(graph_->value(input).name)));
    if (placed_)
      placed_->run(data, outputs, {});
    else
      exec::run(*program_, data, outputs, control_);
    return outputs;
  }

 private:
  void place(int others, bool keeps_limits) {
    auto checker = std::make_shared<AccessChecker>();
    std::vector<std::shared_ptr<Device>> devices{SimDevice::create({.name = "cpu", .host_accessible = true, .checker = checker})};
    for (int d = 0; d < others; ++d) devices.push_back(SimDevice::create({.checker = checker}));
    exec::DevicePlacement placement = exec::place_instructions(*program_, {.default_device = 1});
    if (others > 1)
      for (size_t i = 0; i < placement.of_instruction.size(); ++i)
        if (placement.of_instruction[i] != exec::DevicePlacement::kHost) placement.of_instruction[i] = static_cast<int>(i * 2 + 1) % 3;
    const auto count = static_cast<int>(devices.size());
    exec::ResidencyOptions keeps;
    if (keeps_limits) keeps.limit = std::make_shared<exec::DeviceMemoryLimit>();
    placed_ = std::make_unique<exec::PlacedProgram>(*program_, devices,
                                                    exec::plan_streams(*program_, placement, count, {.compute_streams = 2}), keeps);
  }

  ThreadPool pool_;
  std::shared_ptr<Graph> graph_;
  std::unique_ptr<exec::Program> program_;
  std::unique_ptr<exec::Executor> placed_;
  exec::RunControl control_;
};

const std::vector<std::string>& pass_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const auto& pass : passes::list_passes()) result.emplace_back(pass.name);
    return result;
  }();
  return names;
}

// Random pairs of an input and an output of the same dtype and rank. The inputs' extents are left open if one of the outputs has others,
// else `fixed`.
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

// Whether rounding decides if the case is valid at all.
bool is_undecided(const Case& c) {
  for (const auto& outputs : judge(c, kThoroughRuns))
    if (std::none_of(outputs.begin(), outputs.end(), [](const Expected& output) { return output.decided; })) return true;
  return false;
}

// A few runs of the first set of feeds, whose states go from run to run: each is judged for the states that it began with.
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

// What differs of a run's outputs; also by a thorough judgement.
std::string compare_outputs(const Case& c, const Judgement& judgement, size_t set, const std::vector<Datum>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string difference = compare(outputs[i], judgement[set][i]);
    if (!difference.empty()) difference = compare(outputs[i], judge(c, kThoroughRuns)[set][i]);
    if (!difference.empty()) return "output " + c.model.graph.outputs[i].name + ": " + difference;
  }
  return {};
}

// Three threads, each with the sets in an order of its own.
std::string run_clients(const Case& c, const Judgement& judgement, const Session& session) {
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

}  // namespace

std::string to_string(const Setting& s) {
  std::string text = "level=" + std::to_string(static_cast<int>(s.level)) + " threads=" + std::to_string(s.threads);
  if (!s.where.empty()) text += " where=" + s.where;
  for (const auto& pass : s.skip) text += " skip=" + pass;
  if (s.max_patches != INT64_MAX) text += " max_patches=" + std::to_string(s.max_patches);
  if (!s.reuse_memory) text += " no_reuse";
  if (s.parallel) text += " parallel";
  if (s.device) text += " device=sim";
  if (s.job) text += " job";
  if (s.budget > 0) text += " budget=" + std::to_string(s.budget);
  if (s.partial != 0) text += " partial=" + std::to_string(s.partial);
  if (s.cancelled != 0) text += " cancelled=" + std::to_string(s.cancelled);
  if (s.clients) text += " clients";
  if (s.bound) text += " bound";
  if (s.states != 0) text += " states=" + std::to_string(s.states);
  if (s.file != File::none) text += s.file == File::compiled ? " compiled" : " exported";
  return text;
}

std::vector<Setting> standard_settings() {
  std::vector<Setting> all(1);
  auto with = [&](auto change) {
    all.emplace_back();
    change(all.back());
  };
  for (auto level : {GraphOptimizationLevel::disable_all, GraphOptimizationLevel::basic, GraphOptimizationLevel::extended})
    with([&](Setting& s) { s.level = level; });
  with([](Setting& s) { s.reuse_memory = false; });
  with([](Setting& s) { s.threads = 2; });
  with([](Setting& s) { s.parallel = true, s.threads = 2; });
  with([](Setting& s) { s.device = true; });
  with([](Setting& s) { s.job = true; });
  with([](Setting& s) { s.budget = 0.7; });
  with([](Setting& s) { s.partial = 7; });
  with([](Setting& s) { s.bound = true; });
  with([](Setting& s) { s.states = 7; });
  with([](Setting& s) { s.cancelled = 7; });
  with([](Setting& s) { s.clients = true; });
  for (File file : {File::compiled, File::exported}) with([&](Setting& s) { s.file = file; });
  for (auto level : {GraphOptimizationLevel::disable_all, GraphOptimizationLevel::all})
    for (const char* where : {"readiness", "sim", "several", "nodes"})
      with([&](Setting& s) { s.where = where, s.level = level, s.threads = 2; });
  return all;
}

Setting random_setting(std::mt19937& random) {
  auto one_in = [&](uint32_t n) { return random() % n == 0; };
  Setting s;
  const std::vector<Setting> all = standard_settings();
  s = all[random() % all.size()];
  if (one_in(3)) s.level = one_in(2) ? GraphOptimizationLevel::disable_all : GraphOptimizationLevel::all;
  if (s.level != GraphOptimizationLevel::disable_all && one_in(2))
    for (uint32_t i = 0; i < 1 + random() % 3; ++i) s.skip.push_back(pass_names()[random() % pass_names().size()]);
  if (s.level != GraphOptimizationLevel::disable_all && one_in(8)) s.max_patches = random() % 20;
  if (one_in(10)) s.reuse_memory = !s.reuse_memory;
  if (s.partial != 0) s.partial = 1 + random() % 1000;
  if (s.states != 0) s.states = 1 + random() % 1000;
  if (s.cancelled != 0) s.cancelled = 1 + random() % 1000;
  if (s.budget > 0) s.budget = 0.3 + 0.1 * (random() % 8);
  return s;
}

std::vector<Setting> simpler(const Setting& s) {
  std::vector<Setting> result;
  auto with = [&](bool applies, auto change) {
    if (!applies) return;
    result.push_back(s);
    change(result.back());
  };
  with(!s.where.empty(), [](Setting& t) { t.where.clear(); });
  with(s.level != GraphOptimizationLevel::disable_all,
       [](Setting& t) { t.level = GraphOptimizationLevel::disable_all, t.skip.clear(), t.max_patches = INT64_MAX; });
  with(s.file != File::none, [](Setting& t) { t.file = File::none; });
  with(s.threads > 1, [](Setting& t) { t.threads = 1; });
  with(s.parallel, [](Setting& t) { t.parallel = false; });
  with(s.device, [](Setting& t) { t.device = false; });
  with(s.job, [](Setting& t) { t.job = false; });
  with(s.budget > 0, [](Setting& t) { t.budget = 0; });
  with(s.partial != 0, [](Setting& t) { t.partial = 0; });
  with(s.cancelled != 0, [](Setting& t) { t.cancelled = 0; });
  with(s.clients, [](Setting& t) { t.clients = false; });
  with(s.bound, [](Setting& t) { t.bound = false; });
  with(s.states != 0, [](Setting& t) { t.states = 0; });
  with(!s.reuse_memory, [](Setting& t) { t.reuse_memory = true; });
  with(s.max_patches != INT64_MAX, [](Setting& t) { t.max_patches = INT64_MAX; });
  with(!s.skip.empty(), [](Setting& t) { t.skip.clear(); });
  return result;
}

std::string run_case(const Case& c, const Judgement& judgement, const Setting& setting) {
  const std::string model = onnx::serialize_model(c.model);
  try {
    if (setting.states != 0 && setting.where.empty()) return run_states(c, judgement, setting);
    if (setting.clients && setting.where.empty()) {
      const SessionRunner runner(model, setting);
      return run_clients(c, judgement, runner.session());
    }
    std::unique_ptr<Runner> runner;
    if (setting.where.empty())
      runner = std::make_unique<SessionRunner>(model, setting);
    else
      runner = std::make_unique<ProgramRunner>(model, setting);
    for (size_t turn = 0; turn <= c.sets.size(); ++turn) {
      const size_t set = turn % c.sets.size();
      std::string difference = compare_outputs(c, judgement, set, runner->run(c.sets[set]));
      if (!difference.empty()) return "wrong: run " + std::to_string(turn) + " (feeds " + std::to_string(set) + "), " + difference;
    }
    return {};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument && is_undecided(c)) return {};
    return "error " + std::string(error_code_name(error.code())) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
}

}  // namespace treadle::graphs
