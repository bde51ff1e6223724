// What the files of the simulated device share.
#pragma once
#include <torch/extension.h>

// A tensor on the CPU with the memory of one on the device. `keeps`: it keeps that memory alive.
at::Tensor host_alias(const at::Tensor& tensor, bool keeps = true);

// Run the late copies of the current stream of a device.
void run_late_copies(c10::DeviceIndex device);

void register_process_group(pybind11::module& m);
