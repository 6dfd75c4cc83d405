// treadle: runs, trains, inspects, checks, measures, profiles, optimizes, compiles and compares ONNX models.
#include "cli/commands.h"

int main(int argc, char** argv) { return treadle::cli::run_command_line(argc, argv); }
