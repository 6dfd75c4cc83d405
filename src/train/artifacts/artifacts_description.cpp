// Converts the description of a trainer, which its artifacts contain, to JSON and back.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <type_traits>

#include "core/base/json_depth.h"
#include "train/artifacts/artifacts.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

using Json = nlohmann::json;

template <typename T>
void write(Json& json, std::string_view name, const T& value) {
  if constexpr (is_optional<T>) {
    if (value) json[name] = *value;
  } else {
    json[name] = value;
  }
}
template <typename T>
void read(const Json& json, std::string_view name, T& value) {
  if constexpr (is_optional<T>)
    value = json.contains(name) ? T(json.at(name).get<typename T::value_type>()) : std::nullopt;
  else
    json.at(name).get_to(value);
}

// Calls `visit` with the JSON name and the value of every option that still matters after the graphs have been built, because it affects
// a step, a checkpoint or the saved model.
template <typename Visit>
void for_each_option(TrainerOptions& o, const Visit& visit) {
  for (const Option<TrainerOptions>& row : step_options())
    std::visit(
        [&](const auto& member) {
          if constexpr (!std::is_void_v<ValueOf<std::remove_cvref_t<decltype(member)>>>) visit(row.name, value_in(o, member));
        },
        row.member);
  visit("loss", o.loss), visit("optimizer", o.optimizer), visit("schedule", o.schedule.kind);
  visit("fused_update", o.fused_update), visit("early_updates", o.early_updates), visit("precision", o.session.precision);
}

Json to_json(const ArtifactsDescription::NamedShapes& shapes) {
  Json list = Json::array();
  for (const auto& [name, shape] : shapes) {
    const auto dims = shape.dims();
    list.push_back({{"name", name}, {"shape", std::vector<int64_t>(dims.begin(), dims.end())}});
  }
  return list;
}

Shape shape_from(const Json& json) {
  const auto dims = json.get<std::vector<int64_t>>();
  for (int64_t dim : dims)
    if (dim < 0) throw Error(ErrorCode::invalid_model, fmt::format("an extent of {}", dim));
  return Shape(dims);
}

ArtifactsDescription::NamedShapes shapes_from(const Json& json) {
  ArtifactsDescription::NamedShapes shapes;
  for (const Json& each : json) shapes.emplace_back(each.at("name").get<std::string>(), shape_from(each.at("shape")));
  return shapes;
}

}  // namespace

std::string ArtifactsDescription::to_json() const {
  Json json, written;
  TrainerOptions o = options;
  for_each_option(o, [&](std::string_view name, const auto& value) { write(written, name, value); });
  Json groups = Json::array();
  for (const ParameterGroup& group : options.groups) {
    Json each{{"parameters", group.parameters}, {"rate_factor", group.rate_factor}};
    write(each, "weight_decay", group.weight_decay);
    groups.push_back(std::move(each));
  }
  written["groups"] = std::move(groups);
  json["options"] = std::move(written);
  json["settings"] = settings_of(options);
  json["parameters"] = train::to_json(parameters), json["states"] = train::to_json(states);
  json["adapters"] = Json::array();
  for (const Adapter& adapter : adapters) {
    const NamedShapes shapes{{adapter.a, adapter.a_shape}, {adapter.b, adapter.b_shape}};
    json["adapters"].push_back({{"weight", adapter.weight}, {"matrices", train::to_json(shapes)}, {"transposed", adapter.transposed}});
  }
  json["outputs"] = outputs, json["variables"] = variables;
  return json.dump();
}

ArtifactsDescription ArtifactsDescription::from_json(const std::string& text, const std::optional<Model>& loss_model) {
  ArtifactsDescription made;
  if (!is_shallow_json(text)) throw Error(ErrorCode::invalid_model, "it has lists in lists too deep");
  try {
    const Json json = Json::parse(text);
    const Json& options = json.at("options");
    for_each_option(made.options, [&](std::string_view name, auto& value) { read(options, name, value); });
    if (made.options.loss == Loss::graph) made.options.loss_model = loss_model;
    for (const Json& each : options.at("groups")) {
      ParameterGroup& group = made.options.groups.emplace_back();
      read(each, "parameters", group.parameters), read(each, "rate_factor", group.rate_factor);
      read(each, "weight_decay", group.weight_decay);
    }
    made.parameters = shapes_from(json.at("parameters")), made.states = shapes_from(json.at("states"));
    for (const Json& each : json.at("adapters")) {
      const NamedShapes shapes = shapes_from(each.at("matrices"));
      made.adapters.push_back({each.at("weight").get<std::string>(), shapes.at(0).first, shapes.at(1).first, shapes[0].second,
                               shapes[1].second, each.at("transposed").get<bool>()});
    }
    json.at("outputs").get_to(made.outputs), json.at("variables").get_to(made.variables);
    check_options(made.options);
    if (settings_of(made.options) != json.at("settings").get<std::vector<std::pair<std::string, std::string>>>())
      throw Error(ErrorCode::invalid_model, "its options contradict its settings");
    // The error's message is not passed on, because it quotes input bytes that may not be UTF-8.
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ErrorCode::invalid_model, fmt::format("it is no JSON at byte {}", error.byte));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_model, error.what());
  } catch (const std::out_of_range&) {
    throw Error(ErrorCode::invalid_model, "an adapter without its matrices");
  }
  return made;
}

}  // namespace treadle::train
