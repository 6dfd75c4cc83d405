// Binds communicators, through which ranks that train together exchange data. Python programs can also implement communicators.
#include "treadle/communicator.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "numpy.h"

namespace treadle::python {
namespace {

// A communicator that calls the methods of a Python object: `all_reduce(data, dtype)`, `broadcast(data, root)` and, if it exists,
// `fail(reason)`. The object also has `rank` and `size`. The arrays that its methods get are valid only during the call.
class PyCommunicator final : public Communicator {
 public:
  explicit PyCommunicator(const nb::object& object)
      : object_(keep(object)), rank_(nb::cast<int>(object.attr("rank"))), size_(nb::cast<int>(object.attr("size"))) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(void* data, size_t count, DType dtype) override {
    call("all_reduce", bytes_at(data, count * static_cast<size_t>(bits_of(dtype)) / 8),
         [&] { return string_to_python(std::string(name_of(dtype))); });
  }
  void broadcast(void* data, size_t size_bytes, int root) override {
    call("broadcast", bytes_at(data, size_bytes), [&] { return nb::cast(root); });
  }
  void fail(const std::string& reason) noexcept override {
    nb::gil_scoped_acquire gil;
    try {
      if (nb::hasattr(*object_, "fail")) object_->attr("fail")(string_to_python(reason));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("treadle: Communicator.fail");
    }
  }

 private:
  static Tensor bytes_at(void* data, size_t size_bytes) {
    return Tensor(DType::uint8, Shape{static_cast<int64_t>(size_bytes)}, Storage::borrow(data, size_bytes, [] {}));
  }
  template <typename Argument>
  void call(const char* method, const Tensor& data, Argument&& argument) {
    nb::gil_scoped_acquire gil;
    try {
      object_->attr(method)(array_from_tensor(data), argument());
    } catch (nb::python_error& error) {
      throw Error(ErrorCode::timed_out, error.what());
    }
  }
  std::shared_ptr<nb::object> object_;
  int rank_, size_;
};

void all_reduce(Communicator& self, nb::handle array) {
  const Tensor data = written_array(array, "what is summed");
  nb::gil_scoped_release release;
  self.all_reduce(data.raw(), static_cast<size_t>(data.num_elements()), data.dtype());
}
void broadcast(Communicator& self, nb::handle array, int root) {
  const Tensor data = written_array(array, "what is broadcast");
  nb::gil_scoped_release release;
  self.broadcast(data.raw(), data.size_bytes(), root);
}

}  // namespace

void register_communicator(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Communicator>(module, "Communicator", "One rank among several that train together.")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def("all_reduce", &all_reduce, "array"_a, "Sums a contiguous array over all ranks, in place.")
      .def("broadcast", &broadcast, "array"_a, "root"_a = 0, "Rank `root`'s elements for all, in place.")
      .def("barrier", &Communicator::barrier, nb::call_guard<nb::gil_scoped_release>(), "Returns when all ranks have called it.")
      .def("fail", &Communicator::fail, "reason"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Tells the other ranks that this one has failed: their calls raise an error with the reason.");
  module.def(
      "communicator_of", [](const nb::object& object) -> std::shared_ptr<Communicator> { return std::make_shared<PyCommunicator>(object); },
      "object"_a);
  module.def("make_thread_communicators", &make_thread_communicators, "size"_a, "deadline_s"_a);
  module.def("connect_communicator", &connect_communicator, "name"_a, "deadline_s"_a, nb::call_guard<nb::gil_scoped_release>());
  module.def("launched_communicator", &launched_communicator);
}

}  // namespace treadle::python
