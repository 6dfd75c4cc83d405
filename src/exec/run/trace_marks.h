// Marks for external tracing tools, by build option: USDT probes (TREADLE_USDT; for perf, bpftrace, SystemTap) and NVTX ranges
// (TREADLE_NVTX; for Nsight Systems). Without these options the classes do nothing.
#pragma once

#ifdef TREADLE_USDT
#include <sys/sdt.h>
#endif
#ifdef TREADLE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include <cstdint>
#include <optional>

#include "exec/program/program.h"
#include "graph/graph.h"

namespace treadle::exec {

/// Marks a node. Fires the probes `treadle:node_begin` and `treadle:node_end` with the operator and the node's name (char*), or makes an
/// NVTX range of that name.
class NodeMark {
 public:
  explicit NodeMark([[maybe_unused]] const Node& node)
#ifdef TREADLE_USDT
      : node_(node)
#endif
  {
#ifdef TREADLE_USDT
    DTRACE_PROBE2(treadle, node_begin, node.op_type.c_str(), node.name.c_str());
#endif
#ifdef TREADLE_NVTX
    nvtxRangePushA(node.name.empty() ? node.op_type.c_str() : node.name.c_str());
#endif
  }
  NodeMark(const NodeMark&) = delete;
  NodeMark& operator=(const NodeMark&) = delete;
  ~NodeMark() {  // NOLINT(modernize-use-equals-default): empty without the options
#ifdef TREADLE_NVTX
    nvtxRangePop();
#endif
#ifdef TREADLE_USDT
    DTRACE_PROBE2(treadle, node_end, node_.op_type.c_str(), node_.name.c_str());
#endif
  }

#ifdef TREADLE_USDT
 private:
  const Node& node_;
#endif
};

/// Marks a part of training: forward, backward, step. Fires the probes `treadle:part_begin` and `treadle:part_end` with its name (char*),
/// or makes an NVTX range, for example "treadle forward". Runs are nested in it.
class PartMark {
 public:
  /// @param name  for example "treadle forward"; must be a literal
  explicit PartMark([[maybe_unused]] const char* name)
#ifdef TREADLE_USDT
      : name_(name)
#endif
  {
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, part_begin, name);
#endif
#ifdef TREADLE_NVTX
    nvtxRangePushA(name);
#endif
  }
  PartMark(const PartMark&) = delete;
  PartMark& operator=(const PartMark&) = delete;
  ~PartMark() {  // NOLINT(modernize-use-equals-default): empty without the options
#ifdef TREADLE_NVTX
    nvtxRangePop();
#endif
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, part_end, name_);
#endif
  }

#ifdef TREADLE_USDT
 private:
  const char* name_;
#endif
};

/// Marks the phases of a training step within its run, if nodes run in order: forward, backward, communication, optimizer. Fires the probes
/// of PartMark.
class PhaseMarks {
 public:
  explicit PhaseMarks([[maybe_unused]] const Program& program)
#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
      : is_step_(index_of(program.commit_from()) < program.instructions().size())
#endif
  {
  }
  PhaseMarks(const PhaseMarks&) = delete;
  PhaseMarks& operator=(const PhaseMarks&) = delete;
  ~PhaseMarks() { enter(StepPhase::none); }

  void enter([[maybe_unused]] StepPhase phase) {
#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
    if (!is_step_ || phase == phase_) return;
    mark_.reset();
    phase_ = phase;
    if (phase != StepPhase::none) mark_.emplace(name_of(phase).data());  // name_of() returns a literal
#endif
  }

#if defined(TREADLE_USDT) || defined(TREADLE_NVTX)
 private:
  const bool is_step_;
  StepPhase phase_ = StepPhase::none;
  std::optional<PartMark> mark_;
#endif
};

/// Marks a run. Fires the probes `treadle:run_begin` and `treadle:run_end` with the run's number, or makes an NVTX range "treadle run".
class RunMark {
 public:
  explicit RunMark([[maybe_unused]] uint64_t run_id)
#ifdef TREADLE_USDT
      : run_id_(run_id)
#endif
  {
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, run_begin, run_id);
#endif
#ifdef TREADLE_NVTX
    nvtxRangePushA("treadle run");
#endif
  }
  RunMark(const RunMark&) = delete;
  RunMark& operator=(const RunMark&) = delete;
  ~RunMark() {  // NOLINT(modernize-use-equals-default): empty without the options
#ifdef TREADLE_NVTX
    nvtxRangePop();
#endif
#ifdef TREADLE_USDT
    DTRACE_PROBE1(treadle, run_end, run_id_);
#endif
  }

#ifdef TREADLE_USDT
 private:
  uint64_t run_id_;
#endif
};

}  // namespace treadle::exec
