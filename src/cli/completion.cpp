// treadle completion: prints a completion script for a shell, derived from the parser's commands, options and values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/terminal.h"

namespace treadle::cli {
namespace {

std::vector<std::string> completed_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<const CLI::App*> commands_of(const CLI::App& root) {
  return root.get_subcommands([](const CLI::App* app) { return !app->get_name().empty(); });
}

std::string bash_script(const CLI::App& root) {
  std::string cases, names;
  for (const CLI::App* command : commands_of(root)) {
    names += (names.empty() ? "" : " ") + command->get_name();
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), fmt::join(completed_options(*command), " "));
  }
  return fmt::format(R"(# source <(treadle completion bash)
_treadle() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{} --help --version" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{}  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _treadle treadle
)",
                     names, cases);
}

// Quotes the first line of a text for fish, where a backslash escapes quotes and backslashes within single quotes.
std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text.substr(0, text.find('\n'))) quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "'";
}

std::string fish_script(const CLI::App& root) {
  std::string text = "# treadle completion fish | source\n";
  for (const CLI::App* command : commands_of(root)) {
    text += fmt::format("complete -c treadle -n __fish_use_subcommand -a {} -d {}\n", command->get_name(),
                        fish_quoted(command->get_description()));
    for (const CLI::Option* option : command->get_options()) {
      std::string names;
      for (const std::string& name : option->get_lnames()) names += " -l " + name;
      for (const std::string& name : option->get_snames()) names += " -s " + name;
      if (!names.empty())
        text += fmt::format("complete -c treadle -n '__fish_seen_subcommand_from {}'{}{} -d {}\n", command->get_name(), names,
                            option->get_items_expected_max() > 0 ? " -r" : "", fish_quoted(option->get_description()));
    }
  }
  return text;
}

}  // namespace

Command add_completion(CLI::App& app) {
  app.description("Print a completion script for a shell: bash, zsh or fish");
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  app.footer("Example: source <(treadle completion bash)");
  return [shell, &app] {
    const CLI::App& root = *app.get_parent();
    if (*shell == "fish")
      show("{}", fish_script(root));
    else  // zsh can use bash's functions
      show("{}{}", *shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" : "", bash_script(root));
    return 0;
  };
}

}  // namespace treadle::cli
