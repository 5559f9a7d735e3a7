-- 0003: the batch job of an attempt under launcher slurm; NULL until sbatch has answered, and elsewhere.
ALTER TABLE attempts ADD COLUMN slurm_job INTEGER;
