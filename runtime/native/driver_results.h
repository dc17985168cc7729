/* Words for results of the driver, based on the comments in cuda.h. runtime/device/devices.py reads
 * this file too: each row is one line.
 *
 * STICKY(codes): the process cannot use the GPU again, whichever call returns them. For each of them,
 * cuda.h states that the process is left in an inconsistent state or that the context can no longer
 * be used, or (214 and 220) that there was an uncorrectable memory or NVLink error.
 * START(code, reason, remedy): results of cuInit.
 * RESULT(code, remedy): results of other functions. */
STICKY(214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911)

START(3, "it is shutting down, or this process was forked after it was opened", "Start processes with multiprocessing.get_context(\"spawn\").")
START(100, "it finds no GPU", "Run nvidia-smi; in a container, start it with --gpus all.")
START(101, "CUDA_VISIBLE_DEVICES names a GPU that does not exist", "Set CUDA_VISIBLE_DEVICES to numbers that nvidia-smi lists, or unset it.")
START(802, "the GPUs are not ready yet", "Start nvidia-fabricmanager, or wait for it.")
START(803, "its library does not match the kernel module that is loaded", "Restart the machine, or load the kernel module of the installed driver.")
START(804, "a library for forward compatibility does not support this GPU", "Remove the package cuda-compat, or install a newer driver.")
START(999, "it does not say why", "Run nvidia-smi; restarting the machine often helps.")

RESULT(1, "An argument is out of the driver's range.")
RESULT(2, "Free GPU memory, or use smaller arrays.")
RESULT(201, "Make a device current in this thread, or pass a stream of a device.")
RESULT(209, "The cubin is for another GPU: compile for this one.")
RESULT(222, "The file was made by a newer toolkit: install a newer driver.")
RESULT(400, "The stream does not exist, or belongs to another device.")
RESULT(701, "The kernel takes more registers or threads than a block may have here.")
RESULT(708, "Set its flags before anything uses the GPU.")
RESULT(709, "The context was destroyed or reset: keep it for as long as kernels are called.")
RESULT(900, "This cannot be done while a stream is captured: call preload() before.")
RESULT(906, "This cannot be done while a stream is captured: call preload() before.")
RESULT(912, "The cluster does not fit this GPU.")

#undef STICKY
#undef START
#undef RESULT
