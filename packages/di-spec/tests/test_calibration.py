import numpy as np
import pytest

from di_spec import CalibrationError, ConfidenceCalibrator, calibration_error


def synthetic(rng, temperatures, n=20_000):
    """Overconfident logits, and acceptance that follows their scaled values."""
    true_logits = rng.normal(0.5, 1.5, (n, len(temperatures)))
    accept = rng.random(true_logits.shape) < 1 / (1 + np.exp(-true_logits))
    num_accepted = np.cumprod(accept, axis=1).sum(1)
    return true_logits * np.asarray(temperatures), num_accepted


def test_known_temperatures_are_found(rng):
    logits, accepted = synthetic(rng, [2.0, 0.5, 3.0])
    verified = np.full(len(logits), 3)
    fit = ConfidenceCalibrator.fit("ratio", logits, verified, accepted)
    for found, true in zip(fit.temperatures[:2], (2.0, 0.5), strict=True):
        assert true / 1.3 < found < true * 1.3
    raw = ConfidenceCalibrator.identity("ratio", 3)
    for k in range(3):
        before, after = (
            calibration_error(np.prod(c.apply(logits)[:, : k + 1], axis=1), accepted > k)
            for c in (raw, fit)
        )
        assert after < max(0.5 * before, 0.01)


def test_order_within_a_position_is_kept(rng):
    logits, accepted = synthetic(rng, [2.0, 2.0], n=2000)
    fit = ConfidenceCalibrator.fit("coupled", logits, np.full(2000, 2), accepted)
    np.testing.assert_array_equal(
        np.argsort(fit.apply(logits)[:, 0], kind="stable"), np.argsort(logits[:, 0], kind="stable")
    )


def test_positions_without_data_follow_the_one_before(rng):
    logits, accepted = synthetic(rng, [2.0, 2.0, 2.0], n=5000)
    verified = np.ones(5000, int)
    fit = ConfidenceCalibrator.fit("ratio", logits, verified, np.minimum(accepted, 1))
    assert fit.num_samples == (5000, 0, 0)
    assert fit.temperatures[1] == fit.temperatures[2] == fit.temperatures[0]
    empty = ConfidenceCalibrator.fit("ratio", logits[:0], [], [])
    assert empty.temperatures == (1.0, 1.0, 1.0)


def test_saved_fit_is_for_one_drafter_and_mode(tmp_path, rng):
    path = tmp_path / "fit.json"
    logits, accepted = synthetic(rng, [1.5], n=500)
    fit = ConfidenceCalibrator.fit("coupled", logits, np.ones(500, int), accepted)
    fit.save(path, "head@1")
    assert ConfidenceCalibrator.load(path, "head@1", "coupled") == fit
    with pytest.raises(CalibrationError, match="fitted for coupled verification"):
        ConfidenceCalibrator.load(path, "head@1", "ratio")
    with pytest.raises(CalibrationError, match="drafter 'head@1': expected 'head@2'"):
        ConfidenceCalibrator.load(path, "head@2", "coupled")
    path.write_text("[]")
    with pytest.raises(CalibrationError, match="not a saved calibration"):
        ConfidenceCalibrator.load(path, "head@1", "coupled")


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="must not exceed"):
        ConfidenceCalibrator.fit("ratio", np.zeros((1, 2)), [1], [2])
    with pytest.raises(ValueError, match="must be"):
        ConfidenceCalibrator.fit("ratio", np.zeros((1, 2)), [1, 1], [1, 1])
    with pytest.raises(ValueError, match="fitted for 1"):
        ConfidenceCalibrator.identity("ratio", 1).apply(np.zeros((1, 2)))


def test_error_of_perfect_and_wrong_predictions():
    assert calibration_error(np.array([0.5, 0.5]), np.array([True, False])) == 0
    assert calibration_error(np.array([1.0, 1.0]), np.array([False, False])) == 1
    assert calibration_error(np.array([]), np.array([], bool)) == 0


def test_extreme_logits_stay_finite():
    fit = ConfidenceCalibrator.identity("ratio", 2)
    assert np.isfinite(fit.apply(np.array([[1e300, -1e300]]))).all()
