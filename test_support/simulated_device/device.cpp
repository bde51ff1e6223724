// Two devices of the type "sim" (PrivateUse1) whose memory is the host's. Operators run on CPU aliases of that memory.
//
// What a real device does and a CPU does not is simulated: mixing devices raises, each read by the host is an event,
// each device has random numbers, streams and statistics of memory of its own, and in the late mode asynchronous copies
// happen as late as a device may do them: at the next operation of their stream, or when somebody waits for it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <deque>
#include <map>
#include <mutex>
#include <unordered_set>

#include "device.h"

using namespace at;
namespace py = pybind11;

constexpr int kDevices = 2, kStreams = 32;
constexpr int kPoison = 0x7f;  // as float32: 3.4e38

static thread_local DeviceIndex current_device = 0;
static thread_local StreamId current_streams[kDevices] = {};
static std::recursive_mutex mutex;
static PyObject* listener = nullptr;
static bool is_late = false;

static void tell(const std::string& kind, const std::string& what) {
  if (!listener || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::function>(listener)(kind, what);
}

struct OnDevice {  // sets the current device for a scope; -1 leaves it
  explicit OnDevice(DeviceIndex index) : before(current_device) {
    if (index >= 0) current_device = index;
  }
  ~OnDevice() { current_device = before; }
  DeviceIndex before;
};

// ---- memory --------------------------------------------------------------------------------------------------------

struct Block {
  void* data;
  size_t size;
  DeviceIndex device;
  StreamId stream;                      // whose operations may use its memory again at once when it is freed
  std::unordered_set<StreamId> others;  // `record_stream`
  int waiting = 0;                      // late copies that read or write it
  bool is_freed = false;
};

static std::unordered_set<void*> pinned;
static c10::CachingDeviceAllocator::DeviceStats statistics[kDevices];
static constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

static void release(Block* block) {
  auto& stats = statistics[block->device];
  stats.allocated_bytes[kAll].decrease(block->size);
  stats.allocation[kAll].decrease(1);
  free(block->data);
  delete block;
}

static void free_block(void* context) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  auto* block = static_cast<Block*>(context);
  if (!block->waiting) return release(block);
  block->is_freed = true;
  if (!block->others.size()) memset(block->data, kPoison, block->size);  // its memory may already be another tensor's
}

static void free_pinned(void* data) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  pinned.erase(data);
  free(data);
}

static void* aligned(size_t size) {
  void* data = nullptr;
  TORCH_CHECK(!size || !posix_memalign(&data, 64, size), "out of memory on the simulated device");
  return data;
}

struct DeviceMemory final : c10::DeviceAllocator {
  DataPtr allocate(size_t size) override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    void* data = aligned(size);
    if (!data) return {nullptr, Device(kPrivateUse1, current_device)};
    memset(data, kPoison, size);
    auto& stats = statistics[current_device];
    stats.allocated_bytes[kAll].increase(size);
    stats.allocation[kAll].increase(1);
    auto* block = new Block{data, size, current_device, current_streams[current_device]};
    return {data, block, &free_block, Device(kPrivateUse1, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { memcpy(to, from, size); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const DataPtr& data, c10::Stream stream) override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (data.get_context()) static_cast<Block*>(data.get_context())->others.insert(stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return statistics[device]; }
  void resetAccumulatedStats(DeviceIndex device) override {
    statistics[device].allocated_bytes[kAll].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override { statistics[device].allocated_bytes[kAll].reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    constexpr size_t total = size_t(8) << 30;
    return {total - statistics[device].allocated_bytes[kAll].current, total};
  }
};
static DeviceMemory device_memory;

struct PinnedMemory final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    void* data = aligned(size);
    if (data) pinned.insert(data);
    return {data, data, &free_pinned, Device(kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t size) const override { memcpy(to, from, size); }
};
static PinnedMemory pinned_memory;

// ---- streams -------------------------------------------------------------------------------------------------------

struct LateCopy {
  uint64_t number;
  std::function<void()> run;
};
struct StreamState {
  uint64_t issued = 0;
  std::deque<LateCopy> late;
};
static StreamState streams[kDevices][kStreams];
static StreamId next_stream[kDevices] = {};
struct EventState {
  DeviceIndex device;
  StreamId stream;
  uint64_t number;
};

static void run_late(DeviceIndex device, StreamId stream, uint64_t up_to = UINT64_MAX) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  auto& state = streams[device][stream];
  while (state.late.size() && state.late.front().number <= up_to) {
    auto copy = std::move(state.late.front());
    state.late.pop_front();
    copy.run();
  }
}

void run_late_copies(DeviceIndex device) { run_late(device, current_streams[device]); }

static Block* block_of(const Tensor& tensor) {
  return tensor.is_privateuseone() ? static_cast<Block*>(tensor.storage().data_ptr().get_context()) : nullptr;
}

static void copy_late(DeviceIndex device, const Tensor& from, const Tensor& to) {
  // Only blocks are held, not tensors: who frees one too early finds other values in it.
  std::lock_guard<std::recursive_mutex> lock(mutex);
  auto stream = current_streams[device];
  auto& state = streams[device][stream];
  std::vector<Block*> blocks;
  for (auto* block : {block_of(from), block_of(to)})
    if (block) {
      block->waiting++;
      blocks.push_back(block);
      if (block->stream == stream) block->others.insert(stream);  // freed in the order of the same stream
    }
  auto source = from.is_privateuseone() ? host_alias(from, false) : from;
  auto target = to.is_privateuseone() ? host_alias(to, false) : to;
  auto dtype = target.scalar_type();
  target.fill_(c10::isFloatingType(dtype) ? Scalar(3e38) : Scalar(dtype == kBool ? 1 : 0x7f));
  state.late.push_back({++state.issued, [=] {
                          target.copy_(source);
                          for (auto* block : blocks)
                            if (!--block->waiting && block->is_freed) release(block);
                        }});
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kPrivateUse1; }
  Device exchangeDevice(Device device) const override {
    Device before(kPrivateUse1, current_device);
    uncheckedSetDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(kPrivateUse1, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "there are ", kDevices, " simulated devices");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  static DeviceIndex index_of(Device device) { return device.index() < 0 ? current_device : device.index(); }
  static Stream stream_of(Device device, StreamId id) {
    return Stream(Stream::UNSAFE, Device(kPrivateUse1, index_of(device)), id);
  }
  Stream getStream(Device device) const override { return stream_of(device, current_streams[index_of(device)]); }
  Stream getDefaultStream(Device device) const override { return stream_of(device, 0); }
  Stream getNewStream(Device device, int) const override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    auto& next = next_stream[index_of(device)];
    next = next % (kStreams - 1) + 1;  // torch's own devices reuse streams of a pool, too
    return stream_of(device, next);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const override {
    auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (!*event) *event = new EventState();
    *static_cast<EventState*>(*event) = {
        stream.device_index(), stream.id(), streams[stream.device_index()][stream.id()].issued};
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<EventState*>(event); }
  static void finish(void* event) {
    if (auto* state = static_cast<EventState*>(event)) run_late(state->device, state->stream, state->number);
  }
  void block(void* event, const Stream&) const override { finish(event); }
  bool queryEvent(void* event) const override {
    finish(event);
    return true;
  }
  bool queryStream(const Stream& stream) const override {
    run_late(stream.device_index(), stream.id());
    return true;
  }
  void synchronizeStream(const Stream& stream) const override {
    tell("wait", "stream.synchronize");
    run_late(stream.device_index(), stream.id());
  }
  void synchronizeEvent(void* event) const override {
    tell("wait", "event.synchronize");
    finish(event);
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    tell("wait", "device.synchronize");
    for (StreamId stream = 0; stream < kStreams; stream++) run_late(device, stream);
  }
  void recordDataPtrOnStream(const DataPtr& data, const Stream& stream) const override {
    device_memory.recordStream(data, stream);
  }
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0.001; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- random numbers ------------------------------------------------------------------------------------------------

static Generator& generator(DeviceIndex device) {
  static Generator all[kDevices] = {at::detail::createCPUGenerator(default_rng_seed_val),
                                    at::detail::createCPUGenerator(default_rng_seed_val)};
  return all[device < 0 ? current_device : device];
}

struct RandomNumbersOf {  // kernels of the CPU draw from the device's generator
  explicit RandomNumbersOf(DeviceIndex device) : own(generator(device)), host(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard<std::mutex> lock(host.mutex());
    before = host.get_state();
    host.set_state(own.get_state());
  }
  ~RandomNumbersOf() {
    std::lock_guard<std::mutex> lock(host.mutex());
    own.set_state(host.get_state());
    host.set_state(before);
  }
  Generator own, host;
  Tensor before;
};

struct Hooks final : PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { Guard().setDevice(Device(kPrivateUse1, device)); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return Guard().exchangeDevice(Device(kPrivateUse1, device)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    return pinned.count(const_cast<void*>(data));
  }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  const Generator& getDefaultGenerator(DeviceIndex device) const override { return generator(device); }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    OnDevice scope(storage.device().index());
    DataPtr data = device_memory.allocate(size);
    if (storage.nbytes() && size) memcpy(data.get(), storage.data(), std::min(storage.nbytes(), size));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

// ---- operators -----------------------------------------------------------------------------------------------------

Tensor host_alias(const Tensor& tensor, bool keeps) {
  const Storage& storage = tensor.storage();
  auto size = storage.nbytes();
  auto* data = const_cast<void*>(storage.data());
  auto release_storage = [](void* held) { delete static_cast<Storage*>(held); };
  DataPtr pointer = keeps ? DataPtr(data, new Storage(storage), release_storage, Device(kCPU))
                          : DataPtr(data, Device(kCPU));
  Storage alias(Storage::use_byte_size_t(), size, std::move(pointer), c10::GetAllocator(kCPU), true);
  auto view = at::detail::make_tensor<TensorImpl>(std::move(alias), DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

static Tensor empty(IntArrayRef sizes, std::optional<IntArrayRef> strides, ScalarType dtype, DeviceIndex device,
                    std::optional<MemoryFormat> format = std::nullopt) {
  OnDevice scope(device);
  DispatchKeySet keys(DispatchKey::PrivateUse1);
  return strides ? at::detail::empty_strided_generic(sizes, *strides, &device_memory, keys, dtype)
                 : at::detail::empty_generic(sizes, &device_memory, keys, dtype, format);
}

using Pairs = std::vector<std::pair<Tensor, Tensor>>;  // tensors of the device, and their aliases

static Tensor to_device(const Tensor& result, const Pairs& inputs, DeviceIndex device) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  for (const auto& [input, alias] : inputs)
    if (result.storage().data() && result.storage().data() == alias.storage().data()) {
      auto view = at::detail::make_tensor<TensorImpl>(
          c10::TensorImpl::VIEW, Storage(input.storage()), DispatchKeySet(DispatchKey::PrivateUse1), result.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
      return view;
    }
  auto copy = empty(result.sizes(), result.strides(), result.scalar_type(), device);
  if (result.numel()) host_alias(copy).copy_(result);
  return copy;
}

static const std::unordered_set<std::string> kReads{
    "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount", "aten::_local_scalar_dense"};

static bool takes_host_tensors(const std::string& name) {  // indices may lie on the host
  return name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index_put", 0) == 0;
}

static void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.operator_name().name;
  size_t count = schema.arguments().size(), base = stack->size() - count;
  std::vector<IValue> given(stack->begin() + base, stack->end());
  Pairs inputs;
  DeviceIndex device = -1;
  bool has_host_tensor = false;
  auto alias = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_privateuseone()) {
      has_host_tensor |= tensor.dim() > 0;
      return tensor;
    }
    TORCH_CHECK(device < 0 || device == tensor.device().index() || tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found sim:", int(device), " and ", tensor.device(),
                " in ", name);
    device = tensor.device().index();
    inputs.emplace_back(tensor, host_alias(tensor));
    return inputs.back().second;
  };
  for (size_t i = 0; i < count; i++) {
    IValue& value = (*stack)[base + i];
    if (value.isTensor()) {
      value = alias(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = alias(tensor);
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> tensor : value.toOptionalTensorList())
        list.push_back(tensor ? std::optional<Tensor>(alias(*tensor)) : tensor);
      value = list;
    } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
      if (value.toDevice().has_index()) device = value.toDevice().index();
      value = Device(kCPU);
    }
  }
  if (device < 0) device = current_device;
  TORCH_CHECK(!has_host_tensor || inputs.empty() || takes_host_tensors(name),
              "Expected all tensors to be on the same device, but found sim and cpu in ", name);
  tell(kReads.count(name) ? "read" : "operator", name);
  run_late_copies(device);
  if (op.hasTag(Tag::nondeterministic_seeded)) {
    RandomNumbersOf scope(device);
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  } else {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  for (auto& [input, on_cpu] : inputs)  // out= variants
    if (input.sizes() != on_cpu.sizes() && input.storage().data() != on_cpu.storage().data()) {
      input.resize_(on_cpu.sizes());
      host_alias(input).copy_(on_cpu);
    }
  size_t results = schema.returns().size();
  for (size_t i = 0; i < results; i++) {
    IValue& result = (*stack)[stack->size() - results + i];
    const auto* returned = schema.returns()[i].alias_info();
    if (returned && returned->isWrite()) {
      for (size_t j = 0; j < count; j++) {
        const auto* argument = schema.arguments()[j].alias_info();
        if (argument && argument->isWrite() && argument->afterSets() == returned->afterSets()) result = given[j];
      }
    } else if (result.isTensor()) {
      result = to_device(result.toTensor(), inputs, device);
    } else if (result.isTensorList()) {
      auto list = result.toTensorVector();
      for (auto& tensor : list) tensor = to_device(tensor, inputs, device);
      result = list;
    }
  }
}

static Tensor sim_empty_memory_format(SymIntArrayRef sizes, std::optional<ScalarType> dtype, std::optional<Layout>,
                                      std::optional<Device> device, std::optional<bool>,
                                      std::optional<MemoryFormat> format) {
  return empty(C10_AS_INTARRAYREF_SLOW(sizes), std::nullopt, c10::dtype_or_default(dtype),
               device ? device->index() : -1, format);
}

static Tensor sim_empty_strided(SymIntArrayRef sizes, SymIntArrayRef strides, std::optional<ScalarType> dtype,
                            std::optional<Layout>, std::optional<Device> device, std::optional<bool>) {
  return empty(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), c10::dtype_or_default(dtype),
               device ? device->index() : -1);
}

static Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  bool reads = from.is_privateuseone() && !to.is_privateuseone(), writes = !from.is_privateuseone();
  auto device = (writes ? to : from).device().index();
  bool is_pinned = !reads && !writes ? true : (reads ? to : from).is_pinned();
  bool is_asynchronous = non_blocking && is_pinned && from.scalar_type() == to.scalar_type();
  if (reads) tell(is_asynchronous ? "copy" : "read", is_asynchronous ? "to pinned memory" : "copy to the host");
  if (writes) tell(is_asynchronous ? "copy" : non_blocking ? "staged copy" : "blocking copy",
                   is_pinned ? "from pinned memory" : "from pageable memory");
  if (is_late && is_asynchronous) {
    copy_late(device, from, to);
    return to;
  }
  run_late_copies(device);
  if (!reads && !writes && to.device() != from.device()) run_late_copies(to.device().index());
  (to.is_privateuseone() ? host_alias(to) : to).copy_(from.is_privateuseone() ? host_alias(from) : from);
  return to;
}

static const Tensor& sim_resize(const Tensor& self, SymIntArrayRef sizes, std::optional<MemoryFormat>) {
  auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  size_t needed = (c10::multiply_integers(shape) + self.storage_offset()) * self.itemsize();
  if (needed > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return self;
}

static Scalar local_scalar(const Tensor& self) {
  tell("read", "item");
  run_late_copies(self.device().index());
  return host_alias(self).item();
}

static Tensor& sim_set_storage_view(Tensor& self, Storage storage, SymInt offset, SymIntArrayRef sizes,
                                    SymIntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), offset.expect_int());
  return self;
}

static Tensor& sim_set_storage(Tensor& self, Storage storage) {
  SymInt size(static_cast<int64_t>(storage.nbytes() / self.itemsize())), stride(1);
  return sim_set_storage_view(self, std::move(storage), 0, SymIntArrayRef(&size, 1), SymIntArrayRef(&stride, 1));
}

static Tensor sim_as_strided(const Tensor& self, SymIntArrayRef sizes, SymIntArrayRef strides,
                             std::optional<SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

static Tensor sim_view(const Tensor& self, SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

static Tensor sim_reshape_alias(const Tensor& self, SymIntArrayRef sizes, SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

static std::tuple<Tensor, Tensor, Tensor> sim_convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  Pairs none;
  auto [a, b, c] =
      at::convolution_backward(host_alias(grad), host_alias(input), host_alias(weight), std::nullopt, stride, padding,
                               dilation, transposed, output_padding, groups, mask);
  auto device = input.device().index();
  return {to_device(a, none, device), to_device(b, none, device), to_device(c, none, device)};
}

static Tensor sim_convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                              IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                              IntArrayRef output_padding, int64_t groups) {
  run_late_copies(input.device().index());
  tell("operator", "aten::convolution");
  auto result = at::convolution(host_alias(input), host_alias(weight),
                                bias && bias->defined() ? std::optional<Tensor>(host_alias(*bias)) : std::nullopt,
                                stride, padding, dilation, transposed, output_padding, groups);
  return to_device(result, {}, input.device().index());
}

static void sim_record_stream(Tensor& self, Stream stream) {
  device_memory.recordStream(self.storage().data_ptr(), stream);
}

// `tensor.data = other` works between the host and a device, as it does for devices that torch knows.
static bool sim_can_share(const Tensor& self, const Tensor& from) {
  return self.layout() == kStrided && from.layout() == kStrided;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", sim_empty_memory_format);
  m.impl("empty_strided", sim_empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("resize_", sim_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Storage", sim_set_storage);
  m.impl("set_.source_Storage_storage_offset", sim_set_storage_view);
  m.impl("as_strided", sim_as_strided);
  m.impl("view", sim_view);
  m.impl("_reshape_alias", sim_reshape_alias);
  m.impl("record_stream", sim_record_stream);
  m.impl("_has_compatible_shallow_copy_type", sim_can_share);
  m.impl("convolution_overrideable", sim_convolution);
  m.impl("convolution_backward_overrideable", sim_convolution_backward);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SINGLE_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SINGLE_PRECISION_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(SINGLE_PRECISION)
  AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_PRECISION_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register_device", [] {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    at::SetAllocator(kPrivateUse1, &device_memory);
  });
  m.def("listen", [](py::object function) { listener = function.is_none() ? nullptr : function.release().ptr(); });
  m.def("set_late", [](bool late) { is_late = late; });
  m.def("default_generator", [](DeviceIndex device) { return generator(device); });
  m.def("host_alias", [](const Tensor& tensor) { return host_alias(tensor); });
  register_process_group(m);
}
