// Parses the command line, and suggests corrections for misspelled commands and options.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>

#include "cli/commands.h"
#include "cli/ending.h"
#include "cli/terminal.h"
#include "core/base/nearest.h"
#include "treadle/session.h"

namespace treadle::cli {
namespace {

struct CommandEntry {
  const char* name;
  Command (*add)(CLI::App&);
};

constexpr CommandEntry kCommands[] = {
#define TREADLE_LISTED(name) {#name, add_##name},
    TREADLE_COMMANDS(TREADLE_LISTED)
#undef TREADLE_LISTED
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Returns an error text for an argument that the parser does not expect: a misspelled command or option, or a value too many.
std::string unexpected_text(CLI::App& app) {
  const auto parsed = app.get_subcommands();
  const CLI::App& command = parsed.empty() ? app : *parsed.front();
  for (const std::string& argument : app.remaining(true)) {
    if (argument.size() > 1 && argument.front() == '-') {
      const std::string name = argument.substr(0, argument.find('='));
      return fmt::format("{} has no option {}; is it {}?", parsed.empty() ? "treadle" : "treadle " + command.get_name(), name,
                         nearest_names(name, option_names(command)));
    }
    if (!parsed.empty())
      return fmt::format("treadle {}: nothing takes \"{}\"; `treadle {} --help` shows what is expected", command.get_name(), argument,
                         command.get_name());
    std::vector<std::string> names;
    for (const CommandEntry& entry : kCommands) names.emplace_back(entry.name);
    return fmt::format("there is no command \"{}\"; is it {}?", argument, nearest_names(argument, names));
  }
  return {};
}

// Joins CLI11's "--runs: takes no number below 0: "-1"", whose second part is of numbers.h, to one sentence.
std::string refused_number_text(std::string_view said) {
  constexpr std::string_view kTakes = ": takes ";
  const size_t colon = said.find(kTakes);
  return colon == std::string_view::npos ? std::string() : fmt::format("{}{}", said.substr(0, colon), said.substr(colon + 1));
}

// Improves CLI11's message for a value that is not allowed, such as "--mode: dynamc not in {dynamic,qdq,weights}".
std::string refused_value_text(std::string_view said) {
  if (std::string text = refused_number_text(said); !text.empty()) return text;
  constexpr std::string_view kNotIn = " not in {";
  const size_t colon = said.find(": "), set = said.find(kNotIn);
  if (colon == std::string_view::npos || set == std::string_view::npos || set < colon || said.back() != '}') return {};
  const std::string_view name = said.substr(0, colon), value = said.substr(colon + 2, set - colon - 2);
  std::string_view rest = said.substr(set + kNotIn.size(), said.size() - set - kNotIn.size() - 1);
  std::vector<std::string> values;
  for (size_t comma = 0; comma != std::string_view::npos; rest.remove_prefix(std::min(rest.size(), comma + 1))) {
    comma = rest.find(',');
    values.emplace_back(rest.substr(0, comma));
  }
  constexpr size_t kFew = 3;  // maximum number of suggestions, as in nearest_names()
  const std::string nearest = values.size() > kFew ? fmt::format("; is it {}?", nearest_names(value, values)) : "";
  return fmt::format("{} takes {}, not \"{}\"{}", name, fmt::join(values, ", "), value, nearest);
}

void say_error(std::string_view text) { show_on(stderr, "{} {}\n", styled("treadle:", Style::bad, stderr), text); }

constexpr int kWrongUse = 2;

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app{
      "Treadle runs, trains, inspects, checks, measures, profiles, optimises, compiles and compares ONNX models.\n"
      "  treadle run model.onnx image=cat.png --top 5\n"
      "  treadle bench model.onnx --compare onnxruntime\n"
      "  treadle profile model.onnx -o report.html\n"
      "`treadle COMMAND --help` tells more.",
      "treadle"};
  app.set_version_flag("--version", std::string(treadle::version()));
  app.require_subcommand(0, 1);
  std::map<CLI::App*, Command> commands;
  for (const CommandEntry& entry : kCommands) {
    CLI::App* sub = app.add_subcommand(entry.name);
    commands[sub] = entry.add(*sub);
  }
  const SignalsRemoveTemporaries endings;
  try {
    app.parse(argc, argv);
    for (auto& [sub, command] : commands)
      if (sub->parsed()) return command();
    show("{}", app.help());
  } catch (const CLI::ExtrasError& error) {
    const std::string text = unexpected_text(app);
    say_error(text.empty() ? error.what() : text);
    return kWrongUse;
  } catch (const CLI::Success& success) {  // thrown for --help and --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const auto parsed = app.get_subcommands();
    const std::string name = parsed.empty() ? "treadle" : "treadle " + parsed.front()->get_name();
    const std::string text = refused_value_text(error.what());
    say_error(fmt::format("{}\n`{} --help` shows what is expected", text.empty() ? error.what() : text, name));
    return kWrongUse;
  } catch (const std::exception& error) {
    say_error(error.what());
    return 1;
  }
  return 0;
}

}  // namespace treadle::cli
