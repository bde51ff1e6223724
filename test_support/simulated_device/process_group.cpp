// A process group for tensors of the simulated device: hands on to another backend (gloo), on the same memory.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device.h"

using namespace c10d;
using at::Tensor;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<Work>;

static Tensors aliases(const Tensors& tensors) {
  Tensors found;
  for (const auto& tensor : tensors) found.push_back(host_alias(tensor));
  return found;
}

static std::vector<Tensors> aliases(const std::vector<Tensors>& lists) {
  std::vector<Tensors> found;
  for (const auto& list : lists) found.push_back(aliases(list));
  return found;
}

struct DeviceWork : Work {  // results are tensors of the device
  DeviceWork(WorkPtr work, Tensors outputs) : Work(-1), work(std::move(work)), outputs(std::move(outputs)) {}
  bool isCompleted() override { return work->isCompleted(); }
  bool isSuccess() const override { return work->isSuccess(); }
  std::exception_ptr exception() const override { return work->exception(); }
  int sourceRank() const override { return work->sourceRank(); }
  Tensors result() override { return outputs; }
  void synchronize() override { work->wait(); }
  bool wait(std::chrono::milliseconds timeout) override { return work->wait(timeout); }
  void abort() override { work->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    work->getFuture()->addCallback([future, outputs = outputs](c10::ivalue::Future& done) {
      if (done.hasError()) {
        future->setError(done.exception_ptr());
      } else {
        future->markCompleted(c10::IValue(outputs));
      }
    });
    return future;
  }
  WorkPtr work;
  Tensors outputs;
};

static Tensors flat(const std::vector<Tensors>& lists) {
  Tensors found;
  for (const auto& list : lists) found.insert(found.end(), list.begin(), list.end());
  return found;
}

struct DeviceBackend : Backend {
  explicit DeviceBackend(c10::intrusive_ptr<Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner(std::move(inner)) {}
  const std::string getBackendName() const override { return "sim"; }
  static WorkPtr on_device(WorkPtr work, Tensors outputs) {
    return c10::make_intrusive<DeviceWork>(std::move(work), std::move(outputs));
  }
  static void finish_copies(const Tensors& tensors) {
    for (const auto& tensor : tensors) run_late_copies(tensor.device().index());
  }

  WorkPtr broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    finish_copies(tensors);
    auto host = aliases(tensors);
    return on_device(inner->broadcast(host, options), tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const AllreduceOptions& options) override {
    finish_copies(tensors);
    auto host = aliases(tensors);
    return on_device(inner->allreduce(host, options), tensors);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& options) override {
    finish_copies(tensors);
    auto host = aliases(tensors);
    return on_device(inner->allreduce_coalesced(host, options), tensors);
  }
  WorkPtr reduce(Tensors& tensors, const ReduceOptions& options) override {
    finish_copies(tensors);
    auto host = aliases(tensors);
    return on_device(inner->reduce(host, options), tensors);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const AllgatherOptions& options) override {
    finish_copies(inputs);
    auto to = aliases(outputs);
    auto from = aliases(inputs);
    return on_device(inner->allgather(to, from, options), flat(outputs));
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& options) override {
    finish_copies({input});
    auto to = host_alias(output), from = host_alias(input);
    return on_device(inner->_allgather_base(to, from, options), {output});
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const AllgatherOptions& options) override {
    finish_copies(inputs);
    auto to = aliases(outputs), from = aliases(inputs);
    return on_device(inner->allgather_into_tensor_coalesced(to, from, options), outputs);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const GatherOptions& options) override {
    finish_copies(inputs);
    auto to = aliases(outputs);
    auto from = aliases(inputs);
    return on_device(inner->gather(to, from, options), flat(outputs));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ScatterOptions& options) override {
    finish_copies(flat(inputs));
    auto to = aliases(outputs);
    auto from = aliases(inputs);
    return on_device(inner->scatter(to, from, options), outputs);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ReduceScatterOptions& options) override {
    finish_copies(flat(inputs));
    auto to = aliases(outputs);
    auto from = aliases(inputs);
    return on_device(inner->reduce_scatter(to, from, options), outputs);
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const ReduceScatterOptions& options) override {
    finish_copies({input});
    auto to = host_alias(output), from = host_alias(input);
    return on_device(inner->_reduce_scatter_base(to, from, options), {output});
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ReduceScatterOptions& options) override {
    finish_copies(inputs);
    auto to = aliases(outputs), from = aliases(inputs);
    return on_device(inner->reduce_scatter_tensor_coalesced(to, from, options), outputs);
  }
  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& to_sizes, std::vector<int64_t>& from_sizes,
                        const AllToAllOptions& options) override {
    finish_copies({input});
    auto to = host_alias(output), from = host_alias(input);
    return on_device(inner->alltoall_base(to, from, to_sizes, from_sizes, options), {output});
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override {
    finish_copies(inputs);
    auto to = aliases(outputs), from = aliases(inputs);
    return on_device(inner->alltoall(to, from, options), outputs);
  }
  WorkPtr send(Tensors& tensors, int rank, int tag) override {
    finish_copies(tensors);
    auto host = aliases(tensors);
    return on_device(inner->send(host, rank, tag), tensors);
  }
  WorkPtr recv(Tensors& tensors, int rank, int tag) override {
    auto host = aliases(tensors);
    return on_device(inner->recv(host, rank, tag), tensors);
  }
  WorkPtr barrier(const BarrierOptions& options) override {
    auto host = options;
    host.device = std::nullopt;
    host.device_ids.clear();
    return inner->barrier(host);
  }
  void setSequenceNumberForGroup() override { inner->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner->getSequenceNumberForGroup(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner->setTimeout(timeout); }
  void abort() override { inner->abort(); }
  void shutdown() override { inner->shutdown(); }

  c10::intrusive_ptr<Backend> inner;
};

void register_process_group(pybind11::module& m) {
  pybind11::module::import("torch.distributed");
  m.def("on_backend", [](const c10::intrusive_ptr<Backend>& inner) -> c10::intrusive_ptr<Backend> {
    return c10::make_intrusive<DeviceBackend>(inner);
  });
}
