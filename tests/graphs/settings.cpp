#include "tests/graphs/settings.h"

#include <algorithm>

#include "core/threads/thread_pool.h"
#include "device/sim/sim_device.h"
#include "exec/placed/placed_program.h"
#include "exec/run/frame.h"
#include "graph/graph.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "tests/exec/host_program.h"
#include "tests/graphs/session_runs.h"
#include "treadle/error.h"

namespace treadle::graphs {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class ProgramRunner : public Runner {
 public:
  ProgramRunner(const std::string& model, const Setting& setting) : pool_(std::max(setting.threads, 1)) {
    graph_ = onnx::import_graph(onnx::parse_model_bytes(bytes_of(model), nullptr, {}));
    onnx::upgrade(*graph_);
    passes::PipelineOptions pipeline{.skip = setting.skip, .max_patches = setting.max_patches, .verify = true};
    if (setting.level == GraphOptimizationLevel::disable_all)
      passes::canonicalize(*graph_);
    else
      passes::optimize(*graph_, pipeline);
    verify(*graph_);
    const bool streams = setting.where != "readiness", readiness = setting.where == "readiness";
    program_ = std::make_unique<testing::HostProgram>(graph_, exec::ProgramOptions{.reuse_memory = setting.reuse_memory,
                                                                                   .parallel = streams || readiness,
                                                                                   .always_parallel = readiness,
                                                                                   .pieces_in_place = readiness});
    if (readiness) {
      control_.threads.pool = &pool_;
      control_.threads.inter_op = setting.threads;
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
      program_->run(data, outputs, control_);
    return outputs;
  }

 private:
  void place(int others, bool keeps_limits) {
    auto checker = std::make_shared<AccessChecker>();
    std::vector<std::shared_ptr<Device>> devices{SimDevice::create({.name = "cpu", .host_accessible = true, .checker = checker})};
    for (int d = 0; d < others; ++d) devices.push_back(SimDevice::create({.checker = checker}));
    exec::DevicePlacement placement = exec::place_instructions(*program_, {.default_device = 1});
    if (others > 1)
      for (exec::InstructionId i : placement.of_instruction.ids())
        if (placement.of_instruction[i] != exec::DevicePlacement::kHost)
          placement.of_instruction[i] = static_cast<int>(index_of(i) * 2 + 1) % 3;
    const auto count = static_cast<int>(devices.size());
    auto memory = std::make_shared<exec::DeviceMemory>(nullptr, keeps_limits);
    placed_ = std::make_unique<exec::PlacedProgram>(*program_, devices,
                                                    exec::plan_streams(*program_, placement, count, {.compute_streams = 2}), memory);
  }

  ThreadPool pool_;
  std::shared_ptr<Graph> graph_;
  std::unique_ptr<testing::HostProgram> program_;
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
  if (s.share > 0) text += " share=" + std::to_string(s.share);
  if (s.recomputed > 0) text += " recomputed=" + std::to_string(s.recomputed);
  if (s.budget > 0) text += " budget=" + std::to_string(s.budget);
  if (s.partial != 0) text += " partial=" + std::to_string(s.partial);
  if (s.cancelled != 0) text += " cancelled=" + std::to_string(s.cancelled);
  if (s.clients) text += " clients";
  if (s.fetches != 0) text += " fetches=" + std::to_string(s.fetches);
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
  with([](Setting& s) { s.share = 0.5; });
  with([](Setting& s) { s.recomputed = 1; });
  with([](Setting& s) { s.budget = 0.7; });
  with([](Setting& s) { s.partial = 7; });
  with([](Setting& s) { s.bound = true; });
  with([](Setting& s) { s.states = 7; });
  with([](Setting& s) { s.cancelled = 7; });
  with([](Setting& s) { s.clients = true; });
  with([](Setting& s) { s.fetches = 7; });
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
  if (s.fetches != 0) s.fetches = 1 + random() % 1000;
  if (s.budget > 0) s.budget = 0.3 + 0.1 * (random() % 8);
  if (!s.device && s.where.empty() && (s.share > 0 || one_in(10))) s.share = 0.1 * (1 + random() % 10);
  if (!s.device && !s.parallel && s.where.empty() && (s.recomputed > 0 || one_in(10))) s.recomputed = 0.25 * (1 + random() % 4);
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
  with(s.share > 0, [](Setting& t) { t.share = 0; });
  with(s.recomputed > 0, [](Setting& t) { t.recomputed = -1; });
  with(s.budget > 0, [](Setting& t) { t.budget = 0; });
  with(s.partial != 0, [](Setting& t) { t.partial = 0; });
  with(s.cancelled != 0, [](Setting& t) { t.cancelled = 0; });
  with(s.clients, [](Setting& t) { t.clients = false; });
  with(s.fetches != 0, [](Setting& t) { t.fetches = 0; });
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
    if (setting.clients && setting.where.empty()) return run_clients(c, judgement, setting);
    if (setting.fetches != 0 && setting.where.empty()) return run_fetches(c, setting);
    std::unique_ptr<Runner> runner;
    if (setting.where.empty())
      runner = make_session_runner(model, setting);
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
