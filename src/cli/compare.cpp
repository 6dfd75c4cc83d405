// Implements the command `treadle compare`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/compare_blame.h"
#include "cli/compare_values.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/peer.h"
#include "cli/terminal.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/intermediate.h"
#include "session/model.h"
#include "session/options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

constexpr std::string_view kOnnxRuntime = "onnxruntime", kOptimized = "optimized";

struct CompareOptions {
  std::string model, with = std::string(kOnnxRuntime), python = "python3";
  InputOptions inputs;
  SessionOptions session;  // options for the optimised stage, or for a second model
  Tolerance tolerance;
  bool outputs = false, all = false, json = false;

  bool is_with_file() const { return with != kOnnxRuntime && with != kOptimized; }
};

// The values of one side, in the order in which they are computed.
using Values = std::vector<std::pair<std::string, Datum>>;

struct Sides {
  Values ours;
  std::map<std::string, Tensor> theirs;
  std::set<std::string> outputs;  // names of outputs among ours
  std::map<std::string, double> steps;
  std::map<std::string, Datum> feeds;
  AssumedExtents assumed;
  std::shared_ptr<const Model> model;  // null: two recordings
};

std::vector<std::string> names_of(const std::vector<ValueInfo>& infos) {
  std::vector<std::string> names;
  for (const ValueInfo& info : infos) names.push_back(info.name);
  return names;
}

// Returns the names of values that still exist after optimisation, because they were not fused into others.
std::vector<std::string> surviving_names(const Model& model, const Values& written) {
  std::set<std::string> known;
  for (const auto& entry : written) known.insert(entry.first);
  std::unique_ptr<Graph> graph = model.impl().import();
  onnx::upgrade(*graph);
  passes::optimize(*graph);
  std::vector<std::string> names;
  for (NodeId id : graph->order())
    for (ValueId output : graph->node(id).outputs)
      if (output != kNoValue && known.contains(graph->value(output).name)) names.push_back(graph->value(output).name);
  return names;
}

void add_tensors(std::span<const std::string> names, const std::vector<Datum>& values, std::map<std::string, Tensor>& tensors) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].is_tensor()) tensors[names[i]] = values[i].tensor();
}

std::map<std::string, Tensor> optimized_values(const Model& model, const CompareOptions& options, const Sides& sides) {
  std::vector<std::string> names;
  if (!options.outputs) names = surviving_names(model, sides.ours);
  for (const std::string& output : names_of(model.outputs()))
    if (std::find(names.begin(), names.end(), output) == names.end()) names.push_back(output);
  std::map<std::string, Tensor> tensors;
  add_tensors(names, Session(model, options.session).run(sides.feeds, names), tensors);
  return tensors;
}

// Returns the values of a model as written, or its outputs alone: a compiled model has no others.
Values values_of(const Model& model, const std::map<std::string, Datum>& feeds, bool outputs_only) {
  Values values;
  if (!outputs_only && !model.impl().compiled) values = run_intermediates(model, feeds);
  std::set<std::string> known;
  for (const auto& entry : values) known.insert(entry.first);
  const std::vector<std::string> outputs = names_of(model.outputs());
  if (std::all_of(outputs.begin(), outputs.end(), [&](const std::string& name) { return known.contains(name); })) return values;
  SessionOptions as_written;
  if (!model.impl().compiled) as_written.graph_optimization_level = GraphOptimizationLevel::disable_all;
  const std::vector<Datum> results = Session(model, as_written).run(feeds);
  for (size_t i = 0; i < results.size(); ++i)
    if (!known.contains(outputs[i])) values.emplace_back(outputs[i], results[i]);
  return values;
}

// Returns a name of the other model for each name: the same one or, if none is the same, the one in its place.
std::map<std::string, std::string> paired(const std::vector<std::string>& ours, const std::vector<std::string>& theirs, const char* what,
                                          const CompareOptions& options) {
  std::map<std::string, std::string> pairs;
  for (const std::string& name : theirs)
    if (std::find(ours.begin(), ours.end(), name) != ours.end()) pairs[name] = name;
  if (pairs.size() == theirs.size() || (!pairs.empty() && std::string_view(what) == "output")) return pairs;
  if (ours.size() != theirs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} and {} differ in their {}s: {} against {}", options.model, options.with, what,
                                                         fmt::join(ours, ", "), fmt::join(theirs, ", ")));
  for (size_t i = 0; i < theirs.size(); ++i) pairs[theirs[i]] = ours[i];
  return pairs;
}

// Runs the second model on the same feeds.
void add_other_model(const CompareOptions& options, const Model& model, const Model& other, Sides& sides) {
  const auto inputs = paired(names_of(model.inputs()), names_of(other.inputs()), "input", options);
  std::map<std::string, Datum> feeds;
  for (const auto& [theirs, ours] : inputs) feeds[theirs] = sides.feeds.at(ours);
  const auto outputs = paired(names_of(model.outputs()), names_of(other.outputs()), "output", options);
  const bool outputs_only = options.outputs || model.impl().compiled || other.impl().compiled;
  Values values;
  if (other.impl().compiled) {
    const std::vector<Datum> results = Session(other, options.session).run(feeds);
    for (size_t i = 0; i < results.size(); ++i) values.emplace_back(other.outputs()[i].name, results[i]);
  } else {
    values = values_of(other, feeds, outputs_only);
  }
  for (const auto& [name, value] : values)
    if (value.is_tensor()) {
      const auto output = outputs.find(name);
      sides.theirs[output == outputs.end() ? name : output->second] = value.tensor();
    }
  for (const auto& [name, step] : quantization_steps(other)) sides.steps[name] = std::max(sides.steps[name], step);
}

// Takes extents that one model leaves open from the other.
std::vector<ValueInfo> joint_inputs(std::vector<ValueInfo> inputs, const std::vector<ValueInfo>& others) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto other = std::find_if(others.begin(), others.end(), [&](const ValueInfo& info) { return info.name == inputs[i].name; });
    if (other == others.end() && others.size() == inputs.size()) other = others.begin() + static_cast<std::ptrdiff_t>(i);
    if (other == others.end() || other->shape.size() != inputs[i].shape.size()) continue;
    for (size_t axis = 0; axis < inputs[i].shape.size(); ++axis)
      if (std::holds_alternative<std::string>(inputs[i].shape[axis])) inputs[i].shape[axis] = other->shape[axis];
  }
  return inputs;
}

// Rejects session options where they would have no influence.
void check_options(const CompareOptions& options) {
  if (options.with == kOptimized) return;
  const SessionOptions defaults;
  for (const Option<SessionOptions>& row : session_option_table().rows())
    if (row.is_set(options.session, defaults))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the option {} holds for the optimised stage: add --with optimized, or leave it out", row.name));
}

Sides compute_sides(const CompareOptions& options) {
  Sides sides;
  if (is_recording(options.model)) {
    if (!options.is_with_file() || !is_recording(options.with))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} holds recorded values: --with names a .npz, a .npy or a folder to compare them with", options.model));
    for (auto& [name, tensor] : read_recording(options.model)) sides.ours.emplace_back(name, tensor), sides.outputs.insert(name);
    for (auto& [name, tensor] : read_recording(options.with)) sides.theirs[name] = tensor;
    return sides;
  }
  sides.model = std::make_shared<const Model>(Model::load(options.model));
  const Model& model = *sides.model;
  if (!options.is_with_file()) model.impl().need_original();
  if (options.with == kOptimized) check_symbols(model, complete(options.session));
  const bool is_recorded = options.is_with_file() && is_recording(options.with);
  std::optional<Model> other;
  if (options.is_with_file() && !is_recorded) other = Model::load(options.with);
  MadeFeeds made = make_feeds(other ? joint_inputs(model.inputs(), other->inputs()) : model.inputs(), options.inputs);
  sides.feeds = std::move(made.values), sides.assumed = std::move(made.assumed);
  sides.steps = quantization_steps(model);
  for (const std::string& name : names_of(model.outputs())) sides.outputs.insert(name);
  with_assumed_extents(sides.assumed, options.inputs, [&] { sides.ours = values_of(model, sides.feeds, options.outputs); });
  if (is_recorded)
    for (auto& [name, tensor] : read_recording(options.with)) sides.theirs[name] = tensor;
  else if (other)
    with_assumed_extents(sides.assumed, options.inputs, [&] { add_other_model(options, model, *other, sides); });
  else if (options.with == kOptimized)
    sides.theirs = optimized_values(model, options, sides);
  else
    sides.theirs = run_onnxruntime(options.python, options.model, sides.feeds, [&] {
      std::vector<std::string> names;
      for (const auto& entry : sides.ours) names.push_back(entry.first);
      return names;
    }());
  return sides;
}

struct ComparedValue {
  std::string name, ours, theirs;
  Difference difference;
  bool is_output = false;

  bool differs() const { return !difference.comparable || !difference.within; }
};

// Compares all values of the original graph in its node order, so that the first difference shows the faulty node.
std::vector<ComparedValue> compared_values(const Sides& sides, const CompareOptions& options) {
  std::vector<ComparedValue> values;
  for (const auto& [name, value] : sides.ours) {
    const auto found = sides.theirs.find(name);
    const bool is_output = sides.outputs.contains(name);
    if (found == sides.theirs.end() || !value.is_tensor() || (options.outputs && !is_output)) continue;
    Tolerance tolerance = options.tolerance;
    if (const auto step = sides.steps.find(name); step != sides.steps.end()) tolerance.step = step->second;
    values.push_back({name, describe(value), describe(found->second), difference_of(value.tensor(), found->second, tolerance), is_output});
  }
  return values;
}

// What all comparisons say together.
struct Verdict {
  size_t num_different = 0, num_outputs = 0, num_different_outputs = 0;
  const ComparedValue* first = nullptr;         // the first value that differs
  const ComparedValue* worst_output = nullptr;  // that with the largest difference
};

Verdict verdict_on(const std::vector<ComparedValue>& values) {
  Verdict verdict;
  for (const ComparedValue& value : values) {
    if (value.differs() && verdict.num_different++ == 0) verdict.first = &value;
    if (!value.is_output) continue;
    ++verdict.num_outputs;
    verdict.num_different_outputs += value.differs();
    if (!verdict.worst_output || value.difference.largest > verdict.worst_output->difference.largest) verdict.worst_output = &value;
  }
  return verdict;
}

// Returns the node that makes the value; empty if the model does not tell.
std::string node_of(const Sides& sides, const std::string& value) {
  if (!sides.model || sides.model->impl().compiled) return "";
  std::unique_ptr<Graph> graph = sides.model->impl().import();
  const ValueId id = graph->find_value(value);
  return id == kNoValue || graph->value(id).producer == kNoNode ? "" : describe(graph->node(graph->value(id).producer));
}

// Searches for what is wrong by itself, beyond the node where a difference shows first.
std::string blame_text(const Sides& sides, const std::vector<ComparedValue>& values, const Verdict& verdict,
                       const CompareOptions& options) {
  if (!verdict.first || !sides.model || options.is_with_file()) return "";
  std::vector<std::string> differing;
  for (const ComparedValue& value : values)
    if (value.differs()) differing.push_back(value.name);
  const auto within = [&](const std::string& name, const Tensor& a, const Tensor& b) {
    Tolerance tolerance = options.tolerance;
    if (const auto step = sides.steps.find(name); step != sides.steps.end()) tolerance.step = step->second;
    const Difference difference = difference_of(a, b, tolerance);
    return difference.comparable && difference.within;
  };
  if (options.with == kOptimized) {
    const std::string& name = verdict.first->name;
    const auto ours = std::find_if(sides.ours.begin(), sides.ours.end(), [&](const auto& entry) { return entry.first == name; });
    return blamed_pass(*sides.model, options.session, sides.feeds, name,
                       [&](const Tensor& value) { return within(name, ours->second.tensor(), value); });
  }
  return blamed_node(*sides.model, sides.feeds, sides.theirs, differing, within);
}

void print_json(const std::vector<ComparedValue>& values, const Verdict& verdict, const Sides& sides, const std::string& blame) {
  auto list = nlohmann::json::array();
  for (const ComparedValue& value : values) {
    list.push_back({{"name", value.name},
                    {"treadle", value.ours},
                    {"other", value.theirs},
                    {"differs", value.differs()},
                    {"is_output", value.is_output}});
    if (!value.difference.comparable) continue;
    list.back()["largest_difference"] = value.difference.largest;
    list.back()["different_elements"] = value.difference.num_different;
    if (!value.difference.example.empty()) list.back()["example"] = value.difference.example;
  }
  show_json(nlohmann::json{{"compared", values.size()},
                           {"first_value_that_differs", verdict.first ? verdict.first->name : ""},
                           {"first_node_that_differs", verdict.first ? node_of(sides, verdict.first->name) : ""},
                           {"wrong_by_itself", blame},
                           {"outputs_agree", verdict.num_different_outputs == 0},
                           {"assumed_extents", joined(sides.assumed)},
                           {"values", list}});
}

std::string difference_text(const ComparedValue& value) {
  const Difference& d = value.difference;
  return !d.comparable ? "-" : !d.example.empty() ? d.example : fmt::format("{:.3g}", d.largest);
}

void print_table(const std::vector<ComparedValue>& values, const CompareOptions& options) {
  TextTable table({"", "value", "differ", "difference", "largest", options.with == kOptimized ? "as written" : "treadle", options.with});
  for (const ComparedValue& value : values) {
    if (!value.differs() && !options.all) continue;
    const Difference& d = value.difference;
    table.add({value.differs() ? "DIFFERS" : "", value.name, d.comparable ? std::to_string(d.num_different) : "all", difference_text(value),
               d.comparable ? fmt::format("{:.3g}", d.magnitude) : "-", value.ours, value.theirs});
  }
  if (!table.empty()) show("{}", table.to_text());
}

void print_verdict(const std::vector<ComparedValue>& values, const Verdict& verdict, const Sides& sides, const CompareOptions& options,
                   const std::string& blame) {
  if (verdict.num_outputs > 0 && sides.model) {
    const ComparedValue& worst = *verdict.worst_output;
    const std::string largest = worst.difference.comparable
                                    ? fmt::format("; the largest difference is {:.3g}, of \"{}\" with values up to {:.3g}",
                                                  worst.difference.largest, worst.name, worst.difference.magnitude)
                                    : "";
    show("outputs: {} of {} agree{}\n", verdict.num_outputs - verdict.num_different_outputs, verdict.num_outputs, largest);
  }
  if (!verdict.first) {
    show(
        "{} of {} values compared, none differs by more than {} + {} * |reference|, one unit in the last place, or one quantisation step\n",
        values.size(), sides.ours.size(), options.tolerance.atol, options.tolerance.rtol);
    return;
  }
  const std::string node = node_of(sides, verdict.first->name);
  if (node.empty())
    show("{}: \"{}\"\n", styled("the first value that differs", Style::bad), verdict.first->name);
  else
    show("{}: {}, in its output \"{}\"\n", styled("the first node that differs", Style::bad), node, verdict.first->name);
  if (!blame.empty()) show("{}\n", blame);
}

int compare(const CompareOptions& options) {
  check_options(options);
  const Sides sides = compute_sides(options);
  const std::vector<ComparedValue> values = compared_values(sides, options);
  if (values.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("nothing was compared: no value of \"{}\" is a tensor that {} has as well",
                                                         options.model, options.with == kOptimized ? "the optimised graph" : options.with));
  const Verdict verdict = verdict_on(values);
  const std::string blame = blame_text(sides, values, verdict, options);
  if (options.json) {
    print_json(values, verdict, sides, blame);
  } else {
    print_table(values, options);
    print_assumed(sides.assumed, options.inputs);
    print_verdict(values, verdict, sides, options, blame);
  }
  return verdict.first ? 1 : 0;
}

}  // namespace

Command add_compare(CLI::App& app) {
  app.description("Compare two stages, two models, two recordings, or Treadle with ONNX Runtime, value by value");
  auto options = std::make_shared<CompareOptions>();
  app.add_option("model", options->model, "ONNX file; or recorded values: a .npz, a .npy, or a folder with .npy or .pb files")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_option("--with", options->with,
                 "onnxruntime; optimized, the optimised stage of the same model; another model, also a compiled one; or recorded values")
      ->capture_default_str();
  app.add_flag("--outputs", options->outputs, "Compare outputs alone");
  app.add_option("--python", options->python, "Interpreter that has onnxruntime")->capture_default_str();
  app.add_option("--rtol", options->tolerance.rtol, "Relative tolerance")->check(at_least(0))->capture_default_str();
  app.add_option("--atol", options->tolerance.atol, "Absolute tolerance")->check(at_least(0))->capture_default_str();
  app.add_flag("--json", options->json, "Print JSON");
  app.add_flag("--all", options->all, "Print every value, not only those that differ");
  app.footer(
      "Numbers may differ by the tolerance, by one unit in the last place of their dtype, and by one quantisation step where they are\n"
      "quantised. Other integers and strings must be equal. Exit status 1 if a value differs.\n"
      "Examples:\n"
      "  treadle compare model.onnx image=cat.png --outputs\n"
      "  treadle compare model.onnx --with model_int8.onnx --outputs --rtol 0.05\n"
      "  treadle run model.onnx -o before; treadle run model.onnx --no-optimize -o after; treadle compare before --with after");
  return [options, &app] {
    GivenOptions(app).need(options->with == kOnnxRuntime, "--with onnxruntime", {"--python"});
    GivenOptions(app).need(!is_recording(options->model), "a model, which is run", {"inputs"});
    GivenOptions(app).need(!is_recording(options->model), "a model, which is run", sample_options());
    return compare(*options);
  };
}

}  // namespace treadle::cli
