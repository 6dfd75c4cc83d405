// Explains how the optimizer changes a model and what a run will need, without running it. The command line and Python use this.
#pragma once

#include <string>
#include <string_view>

#include "cli/inputs.h"
#include "profile/model/explanation.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace treadle::cli {

struct ExplainRequest {
  std::string name;  ///< name of the model
  InputOptions inputs;
  SessionOptions session;
};

/// Explains a model. Also measures the peak speeds of this machine, from which times of nodes are estimated.
profile::Explanation explain_model(const Model& model, const ExplainRequest& request);
/// Describes what the optimizer did to a node of the original model, or from which nodes it made a node of the optimized model.
/// @throws Error(not_found) if there is no such node
profile::NodeHistory explain_node(const profile::Explanation& explanation, const std::string& node);
/// Formats the explanation as text for the terminal. @param top  number of nodes that are shown; 0: all
std::string explanation_text(const profile::Explanation& explanation, int top);
std::string node_history_text(const profile::NodeHistory& history);
/// Returns the contents of a file with this path: HTML for .html, JSON for .json. @throws Error(invalid_argument) for other extensions
std::string explanation_file(std::string_view path, const profile::Explanation& explanation);
void check_explanation_file(std::string_view path);

}  // namespace treadle::cli
