// Binds the function that runs a command of `treadle` or `python -m treadle` in this process.
#include "bindings.h"
#include "cli/commands.h"

namespace treadle::python {

void register_command_line(nb::module_& module) {
  module.def(
      "run_command_line",
      [](std::vector<std::string> arguments) {
        std::vector<char*> pointers;
        for (std::string& argument : arguments) pointers.push_back(argument.data());
        pointers.push_back(nullptr);
        nb::gil_scoped_release released;
        return cli::run_command_line(static_cast<int>(arguments.size()), pointers.data());
      },
      nb::arg("arguments"), "Run a command of the program treadle; `arguments` begin with the program's name. Return the exit status.");
}

}  // namespace treadle::python
