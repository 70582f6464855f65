# SPDX-License-Identifier: Apache-2.0
"""torch_npu.testing: what test files written for Ascend import."""
