module {
	func.func @sdsc_bundle(%pool_base_addr: !sdscbundle.input_arg<index>, %arg_0_base_addr: !sdscbundle.input_arg<index>, %arg_1_base_addr: !sdscbundle.input_arg<index>, %arg_2_base_addr: !sdscbundle.input_arg<index>) {
		%pool = sdscbundle.input_arg_extract value from %pool_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_1 = sdscbundle.input_arg_extract value from %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_2 = sdscbundle.input_arg_extract value from %arg_2_base_addr : !sdscbundle.input_arg<index> -> index
		%offset_3072 = arith.constant 3072 : index
		%arg_0_core_3072 = arith.addi %arg_0, %offset_3072 : index
		%offset_6144 = arith.constant 6144 : index
		%arg_0_core_6144 = arith.addi %arg_0, %offset_6144 : index
		%offset_9216 = arith.constant 9216 : index
		%arg_0_core_9216 = arith.addi %arg_0, %offset_9216 : index
		%arg_1_core_3072 = arith.addi %arg_1, %offset_3072 : index
		%arg_1_core_6144 = arith.addi %arg_1, %offset_6144 : index
		%arg_1_core_9216 = arith.addi %arg_1, %offset_9216 : index
		%pool_core_3072 = arith.addi %pool, %offset_3072 : index
		%pool_core_6144 = arith.addi %pool, %offset_6144 : index
		%pool_core_9216 = arith.addi %pool, %offset_9216 : index
		sdscbundle.sdsc_execute (%arg_0, %arg_0_core_3072, %arg_0_core_6144, %arg_0_core_9216, %arg_1, %arg_1_core_3072, %arg_1_core_6144, %arg_1_core_9216, %pool, %pool_core_3072, %pool_core_6144, %pool_core_9216) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12]}
		%arg_2_core_3072 = arith.addi %arg_2, %offset_3072 : index
		%arg_2_core_6144 = arith.addi %arg_2, %offset_6144 : index
		%arg_2_core_9216 = arith.addi %arg_2, %offset_9216 : index
		sdscbundle.sdsc_execute (%pool, %pool_core_3072, %pool_core_6144, %pool_core_9216, %arg_2, %arg_2_core_3072, %arg_2_core_6144, %arg_2_core_9216) {sdsc_filename="sdsc_1.json", "symbol_ids"=[-13, -14, -15, -16, -17, -18, -19, -20]}
		return
	}
}
