;; a [N, K] times the rows of b [M, K] into out [N, M], four rows of b and four numbers at a time; all in fp32.
;; Beyond the last row of b the last is computed again, so that no case is special.
(module
  (memory (export "memory") 1024)

  (func $row (param $b i32) (param $j i32) (param $k i32) (param $m i32) (result i32)
    (local.get $b)
    (select (local.get $j) (i32.sub (local.get $m) (i32.const 1)) (i32.lt_s (local.get $j) (local.get $m)))
    (i32.mul (local.get $k)) (i32.shl (i32.const 2)) (i32.add))

  (func $put (param $out i32) (param $j i32) (param $m i32) (param $s v128) (param $rest f32)
    (select (local.get $j) (i32.sub (local.get $m) (i32.const 1)) (i32.lt_s (local.get $j) (local.get $m)))
    (i32.shl (i32.const 2)) (i32.add (local.get $out))
    (f32.add
      (f32.add (f32x4.extract_lane 0 (local.get $s)) (f32x4.extract_lane 1 (local.get $s)))
      (f32.add (f32x4.extract_lane 2 (local.get $s)) (f32x4.extract_lane 3 (local.get $s))))
    (f32.add (local.get $rest)) (f32.store))

  (func (export "products") (param $a i32) (param $b i32) (param $out i32) (param $n i32) (param $k i32) (param $m i32)
    (local $i i32) (local $j i32) (local $p i32) (local $whole i32) (local $end i32) (local $x v128) (local $y f32)
    (local $b0 i32) (local $b1 i32) (local $b2 i32) (local $b3 i32) (local $d i32)
    (local $s0 v128) (local $s1 v128) (local $s2 v128) (local $s3 v128)
    (local $t0 f32) (local $t1 f32) (local $t2 f32) (local $t3 f32)
    (loop $columns
      (local.set $b0 (call $row (local.get $b) (local.get $j) (local.get $k) (local.get $m)))
      (local.set $b1 (call $row (local.get $b) (i32.add (local.get $j) (i32.const 1)) (local.get $k) (local.get $m)))
      (local.set $b2 (call $row (local.get $b) (i32.add (local.get $j) (i32.const 2)) (local.get $k) (local.get $m)))
      (local.set $b3 (call $row (local.get $b) (i32.add (local.get $j) (i32.const 3)) (local.get $k) (local.get $m)))
      (local.set $i (i32.const 0))
      (loop $rows
        (local.set $p (i32.add (local.get $a) (i32.shl (i32.mul (local.get $i) (local.get $k)) (i32.const 2))))
        (local.set $whole (i32.shl (i32.and (local.get $k) (i32.const -4)) (i32.const 2)))
        (local.set $end (i32.shl (local.get $k) (i32.const 2)))
        (local.set $d (i32.const 0))
        (local.set $s0 (v128.const i32x4 0 0 0 0)) (local.set $s1 (v128.const i32x4 0 0 0 0))
        (local.set $s2 (v128.const i32x4 0 0 0 0)) (local.set $s3 (v128.const i32x4 0 0 0 0))
        (local.set $t0 (f32.const 0)) (local.set $t1 (f32.const 0)) (local.set $t2 (f32.const 0)) (local.set $t3 (f32.const 0))
        (block $summed
          (loop $fours
            (br_if $summed (i32.ge_s (local.get $d) (local.get $whole)))
            (local.set $x (v128.load (i32.add (local.get $p) (local.get $d))))
            (local.set $s0 (f32x4.add (local.get $s0) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $b0) (local.get $d))))))
            (local.set $s1 (f32x4.add (local.get $s1) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $b1) (local.get $d))))))
            (local.set $s2 (f32x4.add (local.get $s2) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $b2) (local.get $d))))))
            (local.set $s3 (f32x4.add (local.get $s3) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $b3) (local.get $d))))))
            (local.set $d (i32.add (local.get $d) (i32.const 16)))
            (br $fours)))
        (block $done
          (loop $ones
            (br_if $done (i32.ge_s (local.get $d) (local.get $end)))
            (local.set $y (f32.load (i32.add (local.get $p) (local.get $d))))
            (local.set $t0 (f32.add (local.get $t0) (f32.mul (local.get $y) (f32.load (i32.add (local.get $b0) (local.get $d))))))
            (local.set $t1 (f32.add (local.get $t1) (f32.mul (local.get $y) (f32.load (i32.add (local.get $b1) (local.get $d))))))
            (local.set $t2 (f32.add (local.get $t2) (f32.mul (local.get $y) (f32.load (i32.add (local.get $b2) (local.get $d))))))
            (local.set $t3 (f32.add (local.get $t3) (f32.mul (local.get $y) (f32.load (i32.add (local.get $b3) (local.get $d))))))
            (local.set $d (i32.add (local.get $d) (i32.const 4)))
            (br $ones)))
        (local.set $p (i32.add (local.get $out) (i32.shl (i32.mul (local.get $i) (local.get $m)) (i32.const 2))))
        (call $put (local.get $p) (local.get $j) (local.get $m) (local.get $s0) (local.get $t0))
        (call $put (local.get $p) (i32.add (local.get $j) (i32.const 1)) (local.get $m) (local.get $s1) (local.get $t1))
        (call $put (local.get $p) (i32.add (local.get $j) (i32.const 2)) (local.get $m) (local.get $s2) (local.get $t2))
        (call $put (local.get $p) (i32.add (local.get $j) (i32.const 3)) (local.get $m) (local.get $s3) (local.get $t3))
        (br_if $rows (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
      (br_if $columns (i32.lt_s (local.tee $j (i32.add (local.get $j) (i32.const 4))) (local.get $m))))))
