# Toolchain file: Linux on 64-bit Arm, cross-compiled by Debian's g++-aarch64-linux-gnu. Its programs run here by
# qemu-aarch64 of Debian's qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu")
